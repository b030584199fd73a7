// point_rows.h for AVX-512 with VNNI. Include that, not this.
//
// A block of a column is eight parts of 32 weights. Magnitudes of 64 weights are eight loads from the table, merged by
// masks: gathers are microcode on many machines. They are unsigned, as VPDPBUSD wants its first argument; signs go to
// the activations, by masks that are made for all parts of two columns at once. Then lanes are added up until there is
// one for each part of each column, scaled, and turned so that lanes are columns, for sums in the order that is
// promised.
#pragma once

#include "kernels/cpu/products/panel.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

constexpr int kPointRows = 3;
constexpr int kPointColumns = 16;
constexpr int kPointParts = kCodeBlock / 32;
constexpr int kPointSteps = kCodeBlock / 64;  // of 64 weights, two parts

// Columns are taken by twos, c and c + 4, so that what belongs to columns comes out in their order.
constexpr int kPointPairs = kPointColumns / 2;
constexpr int first_of_pair(int pair) { return pair / 4 * 8 + pair % 4; }

// In a register: its distance would be added to every index.
inline const uint64_t* magnitude_table() {
  static constexpr PointTables kTables = make_point_tables();
  const uint64_t* table = kTables.magnitudes;
  asm("" : "+r"(table));
  return table;
}

// What is not magnitudes, of one block of each of two columns.
struct PointPair {
  __mmask64 negative[2][kPointSteps];
  __m512 scales;  // even parts of the first column, odd ones, even ones of the second, odd ones
};

inline void read_pair(const uint8_t* first, const uint8_t* second, PointPair* out) {
  const __m512i a = _mm512_loadu_si512(first + 2), b = _mm512_loadu_si512(second + 2);
  // Words of 32 bits with four times 7 signs, and 4 bits that scale.
  const __m512i in_order = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  const __m512i words = _mm512_permutex2var_epi32(a, in_order, b);
  __m512i signs = words & _mm512_set1_epi32(0x7f);
  constexpr int kAlsoSome = 0xf8;  // a | (b & c)
  signs = _mm512_ternarylogic_epi32(signs, _mm512_slli_epi32(words, 1), _mm512_set1_epi32(0x7f00), kAlsoSome);
  signs = _mm512_ternarylogic_epi32(signs, _mm512_slli_epi32(words, 2), _mm512_set1_epi32(0x7f0000), kAlsoSome);
  signs = _mm512_ternarylogic_epi32(signs, _mm512_slli_epi32(words, 3), _mm512_set1_epi32(0x7f000000), kAlsoSome);
  // The eighth makes their number even.
  const __m512i odd =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
  constexpr int kSomeOfDifference = 0x28;  // (a ^ b) & c
  const __m512i nibbles =
      _mm512_ternarylogic_epi32(signs, _mm512_srli_epi16(signs, 4), _mm512_set1_epi8(15), kSomeOfDifference);
  _mm512_storeu_si512(out->negative, signs | _mm512_shuffle_epi8(odd, nibbles));

  const __m512i by_parity = _mm512_setr_epi32(1, 5, 9, 13, 3, 7, 11, 15, 17, 21, 25, 29, 19, 23, 27, 31);
  const __m512i codes = _mm512_srli_epi32(_mm512_permutex2var_epi32(a, by_parity, b), 28);
  const __m512 factors = (_mm512_cvtepi32_ps(codes) + splat(0.5f)) * splat(0.25f);
  out->scales = _mm512_mask_blend_ps(0xff00, splat(load_half_at(first)), splat(load_half_at(second))) * factors;
}

// The magnitudes of eight points, whose numbers are bytes 0 to 3 and 8 to 11.
inline __m512i point_magnitudes(const uint64_t* table, const uint8_t* from) {
  __m512i all = _mm512_set1_epi64(static_cast<int64_t>(table[from[0]]));
#pragma GCC unroll 8
  for (int i = 1; i < 8; ++i) {
    const auto one = static_cast<int64_t>(table[from[i < 4 ? i : i + 4]]);
    all = _mm512_mask_set1_epi64(all, static_cast<__mmask8>(1 << i), one);
  }
  return all;
}

// What unpack_iq2_xxs makes of a block, for one of each of two columns.
inline void unpack_points(const uint64_t* table, const uint8_t* first, const uint8_t* second, Codes* a, Codes* b) {
  PointPair pair;
  read_pair(first, second, &pair);
  const uint8_t* blocks[2] = {first, second};
  Codes* codes[2] = {a, b};
#pragma GCC unroll 2
  for (int c = 0; c < 2; ++c) {
#pragma GCC unroll 4
    for (int step = 0; step < kPointSteps; ++step) {
      const __m512i magnitudes = point_magnitudes(table, blocks[c] + 2 + 16 * step);
      const __m512i signed_ones =
          _mm512_mask_sub_epi8(magnitudes, pair.negative[c][step], _mm512_setzero_si512(), magnitudes);
      _mm512_storeu_si512(codes[c]->codes + 64 * step, signed_ones);
    }
    // By parity of parts, as pairs have them, to twice each part.
    const __m512i order = _mm512_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7) | _mm512_set1_epi32(8 * c);
    _mm512_storeu_ps(codes[c]->scales, _mm512_permutexvar_ps(order, pair.scales));
  }
}

// Sums of fours of lanes: even parts, with both halves of a part side by side, then odd ones.
inline __m512i sum_fours(const __m512i (&dots)[kPointSteps]) {
  const auto twos = [](__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  };
  const __m512 low = _mm512_castsi512_ps(twos(dots[0], dots[1])), high = _mm512_castsi512_ps(twos(dots[2], dots[3]));
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(low, high, 0x88)),
                          _mm512_castps_si512(_mm512_shuffle_ps(low, high, 0xdd)));
}

// The same for two columns, halves of parts added: in the order of PointPair::scales.
inline __m512i sum_halves(__m512i a, __m512i b) {
  return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

// parts[p] = part p of all columns, from pairs of columns.
inline void turn_parts(const __m512 (&pairs)[kPointPairs], __m512 (&parts)[kPointParts]) {
  __m512 halves[2][4];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m512* from = pairs + 4 * h;
    const __m512d ab_low = (__m512d)_mm512_unpacklo_ps(from[0], from[1]);
    const __m512d ab_high = (__m512d)_mm512_unpackhi_ps(from[0], from[1]);
    const __m512d cd_low = (__m512d)_mm512_unpacklo_ps(from[2], from[3]);
    const __m512d cd_high = (__m512d)_mm512_unpackhi_ps(from[2], from[3]);
    halves[h][0] = (__m512)_mm512_unpacklo_pd(ab_low, cd_low);
    halves[h][1] = (__m512)_mm512_unpackhi_pd(ab_low, cd_low);
    halves[h][2] = (__m512)_mm512_unpacklo_pd(ab_high, cd_high);
    halves[h][3] = (__m512)_mm512_unpackhi_pd(ab_high, cd_high);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    parts[2 * i] = _mm512_shuffle_f32x4(halves[0][i], halves[1][i], 0x88);
    parts[2 * i + 1] = _mm512_shuffle_f32x4(halves[0][i], halves[1][i], 0xdd);
  }
}

// Columns whose blocks of this part of the depth begin at `blocks`: sums[r] += their products with row r.
template <int kRows>
inline void add_points(const uint64_t* magnitudes, const uint8_t* const (&blocks)[kPointColumns], const CodedPart* in,
                       F32 (&sums)[kRows]) {
  PointPair pairs[kPointPairs];
#pragma GCC unroll 8
  for (int p = 0; p < kPointPairs; ++p) read_pair(blocks[first_of_pair(p)], blocks[first_of_pair(p) + 4], pairs + p);
  __m512 scaled[kRows][kPointPairs];
#pragma GCC unroll 8
  for (int p = 0; p < kPointPairs; ++p) {
    __m512i fours[kRows][2];
#pragma GCC unroll 2
    for (int second = 0; second < 2; ++second) {
      const uint8_t* points = blocks[first_of_pair(p) + 4 * second] + 2;
      __m512i dots[kRows][kPointSteps];
#pragma GCC unroll 4
      for (int step = 0; step < kPointSteps; ++step) {
        const __m512i weights = point_magnitudes(magnitudes, points + 16 * step);
        const __mmask64 negative = pairs[p].negative[second][step];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m512i row = _mm512_load_si512(in[r].codes + 64 * step), zero = _mm512_setzero_si512();
          dots[r][step] = _mm512_dpbusd_epi32(zero, weights, _mm512_mask_sub_epi8(row, negative, zero, row));
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) fours[r][second] = sum_fours(dots[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      scaled[r][p] = _mm512_cvtepi32_ps(sum_halves(fours[r][0], fours[r][1])) * pairs[p].scales;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    __m512 parts[kPointParts];
    turn_parts(scaled[r], parts);
#pragma GCC unroll 8
    for (int p = 0; p < kPointParts; ++p) sums[r] = fma(parts[p], splat(in[r].scales[p]), sums[r]);
  }
}

template <int kRows>
void point_rows(const MatrixBlock& block) {
  const uint64_t* magnitudes = magnitude_table();
  for (int64_t column = 0; column < block.columns; column += kPointColumns) {
    const int columns =
        static_cast<int>(block.columns - column < kPointColumns ? block.columns - column : kPointColumns);
    const uint8_t* blocks[kPointColumns];
    // Columns that are not there repeat the last: what they give is not written.
    for (int c = 0; c < kPointColumns; ++c) {
      blocks[c] = block.b + (column + (c < columns ? c : columns - 1)) * block.row_bytes;
    }
    F32 sums[kRows];
    const F32 bias = block.bias ? load_some(block.bias + column, columns) : splat(0.0f);
    for (int r = 0; r < kRows; ++r) sums[r] = bias;
    const bool more = column + 2 * kPointColumns <= block.columns;
    for (int64_t part = 0; part < block.depth / kCodedDepth; ++part) {
      for (int c = 0; more && c < kPointColumns; ++c) {
        __builtin_prefetch(blocks[c] + kPointColumns * block.row_bytes);
      }
      add_points<kRows>(magnitudes, blocks, block.coded + part * block.rows, sums);
      for (int c = 0; c < kPointColumns; ++c) blocks[c] += BlocksIQ2_XXS::kBytes;
    }
    for (int r = 0; r < kRows; ++r) {
      memcpy(block.out + r * block.stride + column, &sums[r], columns * sizeof(float));
    }
  }
}

}  // namespace
}  // namespace kvasir::KVASIR_LEVEL
