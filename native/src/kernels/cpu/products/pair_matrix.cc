// Products with weights in bfloat16 by AMX: activations are pairs of bfloat16, which are multiplied one after the other
// and added in the tiles.
//
// Two tiles of rows meet two of columns: 8 products for 6 tiles that are loaded. Weights of 32 columns are laid out
// once for all rows, kPanelSteps steps of the depth at a time, which the first-level cache holds. The same instructions
// serve one row and many, so a row's bits do not depend on the others.
#include "kernels/cpu/products/pair_matrix.h"

#include "kernels/cpu/products/tile_shapes.h"
#include "kernels/cpu/simd.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

constexpr int kSide = kPairRows;  // rows of a tile; columns of a tile of sums
constexpr int kColumns = 2 * kSide;
constexpr int kPanelSteps = 12;

using Tile = uint16_t[kSide][kPairDepth];  // a kilobyte

struct Panel {
  alignas(64) Tile tiles[kPanelSteps][2];  // row i of a tile: weights 2 i and 2 i + 1 of 16 columns
};

struct Sums {
  alignas(64) float rows[kCodedRows][kColumns];
};

// Four by four: words of 32 bits inside each 128.
inline void turn_words(__m512i& a, __m512i& b, __m512i& c, __m512i& d) {
  const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
  a = _mm512_unpacklo_epi64(ab_low, cd_low), b = _mm512_unpackhi_epi64(ab_low, cd_low);
  c = _mm512_unpacklo_epi64(ab_high, cd_high), d = _mm512_unpackhi_epi64(ab_high, cd_high);
}

// Four by four: the 128-bit parts of four vectors.
inline void turn_parts(__m512i& a, __m512i& b, __m512i& c, __m512i& d) {
  const __m512i ab_low = _mm512_shuffle_i32x4(a, b, 0x44), ab_high = _mm512_shuffle_i32x4(a, b, 0xee);
  const __m512i cd_low = _mm512_shuffle_i32x4(c, d, 0x44), cd_high = _mm512_shuffle_i32x4(c, d, 0xee);
  a = _mm512_shuffle_i32x4(ab_low, cd_low, 0x88), b = _mm512_shuffle_i32x4(ab_low, cd_low, 0xdd);
  c = _mm512_shuffle_i32x4(ab_high, cd_high, 0x88), d = _mm512_shuffle_i32x4(ab_high, cd_high, 0xdd);
}

// kPairDepth weights of 16 columns as a tile: pairs of weights are words, and columns become lanes. Of the weights
// `count` are there; the others are 0.
inline void fill_tile(const uint8_t* const (&columns)[kSide], int64_t offset, int count, Tile* out) {
  const __mmask32 there = count < kPairDepth ? (__mmask32{1} << count) - 1 : ~__mmask32{0};
  __m512i lanes[kSide];
#pragma GCC unroll 16
  for (int c = 0; c < kSide; ++c) {
    const uint8_t* from = columns[c] + offset;
    lanes[c] = _mm512_maskz_loadu_epi16(there, from);
    __builtin_prefetch(from + 512);
  }
#pragma GCC unroll 4
  for (int c = 0; c < kSide; c += 4) turn_words(lanes[c], lanes[c + 1], lanes[c + 2], lanes[c + 3]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) turn_parts(lanes[i], lanes[i + 4], lanes[i + 8], lanes[i + 12]);
    // Vector 4 p + i now holds word 4 p + i of all columns.
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) _mm512_store_si512((*out)[i], lanes[i]);
}

void fill_panel(const MatrixBlock& block, int64_t column, int64_t first, int steps, Panel* panel) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t* columns[kSide];
    for (int c = 0; c < kSide; ++c) {
      // Columns that are not there repeat the last: what they give is not written.
      const int64_t at = column + half * kSide + c;
      columns[c] = block.b + (at < block.columns ? at : block.columns - 1) * block.row_bytes;
    }
    for (int s = 0; s < steps; ++s) {
      const int64_t begin = (first + s) * kPairDepth, left = block.depth - begin;
      fill_tile(columns, begin * 2, static_cast<int>(left < kPairDepth ? left : kPairDepth), &panel->tiles[s][half]);
    }
  }
}

// Adds `steps` steps of the depth to the sums of one or two tiles of rows, `apart` words of 16 bits from each other.
template <bool kTwo>
inline void add_steps(const Panel& panel, int steps, const uint16_t* rows, int64_t apart, float (*sums)[kColumns]) {
  constexpr int kStride = sizeof sums[0];
  _tile_loadd(0, sums[0], kStride);
  _tile_loadd(1, sums[0] + kSide, kStride);
  if constexpr (kTwo) {
    _tile_loadd(2, sums[kSide], kStride);
    _tile_loadd(3, sums[kSide] + kSide, kStride);
  }
  for (int s = 0; s < steps; ++s) {
    _tile_loadd(6, panel.tiles[s][0], sizeof panel.tiles[0][0][0]);
    _tile_loadd(7, panel.tiles[s][1], sizeof panel.tiles[0][0][0]);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half, rows += kSide * kPairDepth) {
      _tile_loadd(4, rows, kPairDepth * sizeof *rows);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kTwo) {
        _tile_loadd(5, rows + apart, kPairDepth * sizeof *rows);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, sums[0], kStride);
  _tile_stored(1, sums[0] + kSide, kStride);
  if constexpr (kTwo) {
    _tile_stored(2, sums[kSide], kStride);
    _tile_stored(3, sums[kSide] + kSide, kStride);
  }
}

void add_panel(const Panel& panel, const MatrixBlock& block, int64_t first, int steps, Sums* sums) {
  const int64_t tile_words = pair_steps(block.depth) * 2 * kSide * kPairDepth;
  const uint16_t* rows = block.pairs + first * 2 * kSide * kPairDepth;
  asm volatile("" ::: "memory");  // panel and sums are written: instructions of tiles do not say what they read
  for (int64_t r = 0; r < block.rows; r += 2 * kSide, rows += 2 * tile_words) {
    if (block.rows - r > kSide) {
      add_steps<true>(panel, steps, rows, tile_words, sums->rows + r);
    } else {
      add_steps<false>(panel, steps, rows, tile_words, sums->rows + r);
    }
  }
}

// The numbers a as bfloat16, rounded to the nearest, in the high halves of words. The largest are cut off, so that they
// stay finite, and infinities with them; what is no number stays none.
inline __m512i rounded(__m512 a) {
  const __m512i bits = _mm512_castps_si512(a),
                odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __mmask16 large = _mm512_cmpge_epi32_mask(magnitude, _mm512_set1_epi32(0x7f7f8000));
  const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  __m512i out = _mm512_mask_mov_epi32(up, large, bits);
  out = _mm512_mask_or_epi32(out, nan, out, _mm512_set1_epi32(0x00400000));
  return _mm512_and_si512(out, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
}

inline void store_high(uint16_t* out, __m512i a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16)));
}

}  // namespace

void pair_product(const MatrixBlock& block) {
  const int64_t all = pair_steps(block.depth);
  Panel panel;
  Sums sums;
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.set(tile, kSide, 64);  // all are whole
  _tile_loadconfig(&shapes);
  for (int64_t column = 0; column < block.columns; column += kColumns) {
    const int64_t left = block.columns - column;
    const size_t bytes = (left < kColumns ? left : kColumns) * sizeof(float);
    alignas(64) float bias[kColumns] = {};
    if (block.bias) memcpy(bias, block.bias + column, bytes);
    for (int64_t r = 0; r < block.rows; ++r) memcpy(sums.rows[r], bias, sizeof bias);
    for (int64_t first = 0; first < all; first += kPanelSteps) {
      const int steps = static_cast<int>(all - first < kPanelSteps ? all - first : kPanelSteps);
      fill_panel(block, column, first, steps, &panel);
      add_panel(panel, block, first, steps, &sums);
    }
    for (int64_t r = 0; r < block.rows; ++r) memcpy(block.out + r * block.stride + column, sums.rows[r], bytes);
  }
  _tile_release();
}

void split(const float* values, int64_t depth, uint16_t* out) {
  for (int64_t begin = 0; begin < depth; begin += kLanes) {
    const int64_t left = depth - begin;
    const __mmask16 there = left < kLanes ? static_cast<__mmask16>((1 << left) - 1) : 0xffff;
    const __m512 value = _mm512_maskz_loadu_ps(there, values + begin);
    const __m512i high = rounded(value);
    // 0 beside what is not finite, or it would be no number.
    const __mmask16 finite = _mm512_cmplt_epi32_mask(
        _mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(0x7fffffff)), _mm512_set1_epi32(0x7f800000));
    const __m512 low = _mm512_maskz_sub_ps(finite, value, _mm512_castsi512_ps(high));
    uint16_t* const to = out + begin / kPairDepth * 2 * kSide * kPairDepth + begin % kPairDepth;
    store_high(to, high);
    store_high(to + kSide * kPairDepth, rounded(low));
    // The rest of a step that the depth does not fill.
    if (left <= kLanes && begin % kPairDepth == 0) {
      store_high(to + kLanes, _mm512_setzero_si512());
      store_high(to + kSide * kPairDepth + kLanes, _mm512_setzero_si512());
    }
  }
}

}  // namespace kvasir::KVASIR_LEVEL
