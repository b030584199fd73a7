// point_rows.h for AArch64 with dot products. Include that, not this.
#pragma once

#include "kernels/cpu/products/panel.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

constexpr int kPointRows = 3;

// Where tables are, each in a register of its own: the compiler would add their distances to every index.
struct PointPlaces {
  const uint64_t *magnitudes, *signs;
  const float* scales;

  PointPlaces() {
    static constexpr PointTables kTables = make_point_tables();
    magnitudes = kTables.magnitudes, signs = kTables.signs, scales = kTables.scales;
    asm("" : "+r"(magnitudes), "+r"(signs), "+r"(scales));
  }
};

// The 16 codes of points i and i + 1 of a part of 32 weights.
inline int8x16_t point_codes(const PointPlaces& places, uint64_t word, int i) {
  const auto two = [](const uint64_t* table, uint64_t first, uint64_t second) {
    return vreinterpretq_s8_u64(vcombine_u64(vld1_u64(table + first), vld1_u64(table + second)));
  };
  const int8x16_t magnitudes = two(places.magnitudes, (word >> 8 * i) & 255, (word >> (8 * i + 8)) & 255);
  const int8x16_t negative = two(places.signs, (word >> (32 + 7 * i)) & 127, (word >> (39 + 7 * i)) & 127);
  return vsubq_s8(veorq_s8(magnitudes, negative), negative);  // -x is ~x + 1
}

// Four columns, whose blocks of this part of the depth begin at `blocks`: sums[r] += their products with row r.
template <int kRows>
inline void add_points(const PointPlaces& places, const uint8_t* const (&blocks)[4], const CodedPart* in,
                       F32 (&sums)[kRows]) {
  const I32 first = vsetq_lane_s32(kFloatBits, splat(0), 0);
  const F32 block_scales = {load_half_at(blocks[0]), load_half_at(blocks[1]), load_half_at(blocks[2]),
                            load_half_at(blocks[3])};
  for (int g = 0; g < kCodeBlock / 32; ++g) {
    I32 dots[kRows][4];
    F32 scales;
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const uint64_t word = load_word(blocks[c] + 2 + 8 * g);
      const int8x16_t low = point_codes(places, word, 0), high = point_codes(places, word, 2);
      scales[c] = places.scales[word >> 60];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const int8_t* row = in[r].codes + 32 * g;
        dots[r][c] = vdotq_s32(vdotq_s32(first, low, vld1q_s8(row)), high, vld1q_s8(row + 16));
      }
    }
    scales = block_scales * scales;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const I32 all = vpaddq_s32(vpaddq_s32(dots[r][0], dots[r][1]), vpaddq_s32(dots[r][2], dots[r][3]));
      const F32 dot = vreinterpretq_f32_s32(all) - splat(kFloatBase);
      sums[r] = fma(dot * scales, splat(in[r].scales[g]), sums[r]);
    }
  }
}

template <int kRows>
void point_rows(const MatrixBlock& block) {
  const PointPlaces places;
  for (int64_t column = 0; column < block.columns; column += 4) {
    const int columns = static_cast<int>(block.columns - column < 4 ? block.columns - column : 4);
    const uint8_t* blocks[4];
    // Columns that are not there repeat the last: what they give is not written.
    for (int c = 0; c < 4; ++c) blocks[c] = block.b + (column + (c < columns ? c : columns - 1)) * block.row_bytes;
    F32 sums[kRows];
    const F32 bias = block.bias ? load_some(block.bias + column, columns) : splat(0.0f);
    for (int r = 0; r < kRows; ++r) sums[r] = bias;
    const bool more = column + 8 <= block.columns;
    for (int64_t part = 0; part < block.depth / kCodedDepth; ++part) {
      for (int c = 0; more && c < 4; ++c) __builtin_prefetch(blocks[c] + 4 * block.row_bytes);
      add_points<kRows>(places, blocks, block.coded + part * block.rows, sums);
      for (int c = 0; c < 4; ++c) blocks[c] += BlocksIQ2_XXS::kBytes;
    }
    for (int r = 0; r < kRows; ++r) {
      memcpy(block.out + r * block.stride + column, &sums[r], columns * sizeof(float));
    }
  }
}

}  // namespace
}  // namespace kvasir::KVASIR_LEVEL
