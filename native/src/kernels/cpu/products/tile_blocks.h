// Products of many rows with large blocks, by AMX: a block's product leaves the tiles once.
//
// A group's scale is a whole number there, so a weight times that is one too, of up to 13 bits: two digits of 8 bits,
// or one where that is enough. Both are multiplied with the same rows, in tiles of their own, along the whole block;
// then 128 * high + low is what factors and products of groups give on other levels, bit by bit.
#pragma once

#include <type_traits>

#include "kernels/cpu/products/point_rows.h"
#include "kernels/cpu/products/tile_rows.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

#if KVASIR_TILES
// A panel of digits, high ones first.
struct TilePanel : Panel {
  alignas(64) uint32_t digits[2][kCodeBlock / 4][kPanelColumns];
};

// The digits of columns before they are lanes.
using DigitRows = int8_t[kPanelColumns][kCodeBlock];

constexpr int kDigitBits = 7;
template <class Blocks>
constexpr int kDigits = Blocks::kMost < 128 ? 1 : 2;

// Digits of factor * code: low ones are -64 to 63.
template <class Blocks>
inline void split_digits(const Codes& codes, int8_t* high, int8_t* low) {
  static_assert(Blocks::kMost <= 126 << kDigitBits, "two digits hold it");
  for (int i = 0; i < kCodeBlock; i += 32) {
    const int g = i / kCodeGroup;
    const auto factor = [&](int of) { return _mm256_set1_epi16(static_cast<int16_t>(codes.factors[of])); };
    const __m512i factors = _mm512_inserti64x4(_mm512_castsi256_si512(factor(g)), factor(g + 1), 1);
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes.codes + i));
    const __m512i whole = _mm512_mullo_epi16(_mm512_cvtepi8_epi16(bytes), factors);
    const auto keep = [i](int8_t* to, __m512i digits) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + i), _mm512_cvtepi16_epi8(digits));
    };
    if constexpr (kDigits<Blocks> == 1) {
      keep(high, whole);
    } else {
      const __m512i half = _mm512_set1_epi16(1 << (kDigitBits - 1));
      const __m512i top = _mm512_srai_epi16(_mm512_add_epi16(whole, half), kDigitBits);
      keep(high, top);
      keep(low, _mm512_sub_epi16(whole, _mm512_slli_epi16(top, kDigitBits)));
    }
  }
}

// The digits of the magnitudes of IQ2_XXS times each of its factors. The three magnitudes differ in their low four bits
// (8, 25, 43: 8, 9, 11), by which VPSHUFB looks bytes up.
struct PointDigits {
  alignas(16) int8_t digits[2][16][16];  // [high, low][code of the factor][low bits of the magnitude]
};
constexpr PointDigits make_point_digits() {
  constexpr int kMagnitudes[] = {8, 25, 43};
  PointDigits tables = {};
  for (int s = 0; s < 16; ++s) {
    for (const int magnitude : kMagnitudes) {
      const int whole = (2 * s + 1) * magnitude, high = (whole + (1 << (kDigitBits - 1))) >> kDigitBits;
      tables.digits[0][s][magnitude & 15] = static_cast<int8_t>(high);
      tables.digits[1][s][magnitude & 15] = static_cast<int8_t>(whole - (high << kDigitBits));
    }
  }
  return tables;
}

inline void point_digits(const uint64_t* magnitudes, const uint8_t* block, const __mmask64 (&negative)[kPointSteps],
                         int8_t* high, int8_t* low) {
  static constexpr PointDigits kTables = make_point_digits();
#pragma GCC unroll 4
  for (int step = 0; step < kPointSteps; ++step) {
    const uint8_t* two_parts = block + 2 + 16 * step;
    const __m512i points = point_magnitudes(magnitudes, two_parts);
    const auto digits = [&](const int8_t(&table)[16][16]) {
      const auto of_part = [&](int p) { return _mm_load_si128((const __m128i*)table[two_parts[8 * p + 7] >> 4]); };
      const __m512i tables = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(of_part(0)), 0xff00, of_part(1));
      const __m512i found = _mm512_shuffle_epi8(tables, points);
      return _mm512_mask_sub_epi8(found, negative[step], _mm512_setzero_si512(), found);
    };
    _mm512_store_si512(high + 64 * step, digits(kTables.digits[0]));
    _mm512_store_si512(low + 64 * step, digits(kTables.digits[1]));
  }
}

// All of the panel, from columns of a block each.
template <class Blocks>
void unpack_digits(const uint8_t* const (&from)[kPanelColumns], TilePanel* panel) {
  alignas(64) DigitRows rows[2];
  if constexpr (__is_same(Blocks, BlocksIQ2_XXS)) {
    const uint64_t* magnitudes = magnitude_table();
    for (int c = 0; c < kPanelColumns; c += 2) {
      PointPair pair;
      read_pair(from[c], from[c + 1], &pair);
      for (int i = 0; i < 2; ++i) {
        point_digits(magnitudes, from[c + i], pair.negative[i], rows[0][c + i], rows[1][c + i]);
        panel->scale[c + i] = point_scale(from[c + i]);
      }
    }
  } else {
    for (int c = 0; c < kPanelColumns; ++c) {
      Blocks::unpack(from[c], kCodeBlock, panel->columns + c);
      split_digits<Blocks>(panel->columns[c], rows[0][c], rows[1][c]);
      panel->scale[c] = panel->columns[c].scale;
    }
  }
  for (int d = 0; d < kDigits<Blocks>; ++d) {
    interleave(rows[d], sizeof rows[d][0], kCodeBlock / 4, 0, panel->digits[d]);
  }
  if (Blocks::kMinimums) {
    interleave(panel->columns->minimums, sizeof(Codes), kCodeBlock / kCodeGroup, 0, panel->minimums);
  }
}

// Sums of a block: [two tiles of rows][digits].
using BlockDots = TileDots[2][2];

// The products of a unit, of `tiles` tiles of rows. Tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 columns.
template <int kCount>
inline void block_dots(const TilePanel& panel, int first, const CodedPart* rows, int tiles, BlockDots& dots) {
  constexpr int kStride = sizeof panel.digits[0][0];
  const auto make = [&](auto both) {
    constexpr bool kBoth = decltype(both)::value;
    _tile_zero(0);
    if constexpr (kCount == 2) _tile_zero(1);
    if constexpr (kBoth) _tile_zero(2);
    if constexpr (kBoth && kCount == 2) _tile_zero(3);
    for (int at = 0; at < kCodeBlock; at += 64) {
      _tile_loadd(4, rows->codes + at, sizeof *rows);
      _tile_loadd(6, panel.digits[0][at / 4] + first, kStride);
      _tile_dpbssd(0, 4, 6);
      if constexpr (kCount == 2) {
        _tile_loadd(7, panel.digits[1][at / 4] + first, kStride);
        _tile_dpbssd(1, 4, 7);
      }
      if constexpr (kBoth) {
        _tile_loadd(5, rows[kTileRows].codes + at, sizeof *rows);
        _tile_dpbssd(2, 5, 6);
        if constexpr (kCount == 2) _tile_dpbssd(3, 5, 7);
      }
    }
    _tile_stored(0, dots[0][0], sizeof dots[0][0][0]);
    if constexpr (kCount == 2) _tile_stored(1, dots[0][1], sizeof dots[0][0][0]);
    if constexpr (kBoth) _tile_stored(2, dots[1][0], sizeof dots[0][0][0]);
    if constexpr (kBoth && kCount == 2) _tile_stored(3, dots[1][1], sizeof dots[0][0][0]);
  };
  if (tiles == 2) {
    make(std::true_type());
  } else {
    make(std::false_type());
  }
}

// 16 rows and columns: sums += their products, scaled.
template <class Blocks>
inline void add_scaled_block(const TilePanel& panel, int first, const CodedPart* rows, const TileDots (&dots)[2],
                             float (*out)[kPanelColumns]) {
  const F32 scale = load(panel.scale + first);
  F32 sums[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    I32 whole = load(dots[0][r]);
    if constexpr (kDigits<Blocks> == 2) whole = (whole << kDigitBits) + load(dots[1][r]);
    sums[r] = fma(to_float(whole) * scale, splat(rows[r].scales[0]), load(out[r] + first));
  }
  if constexpr (Blocks::kMinimums) {
    for (int at = 0; at < kCodeBlock; at += Blocks::kGroup) {
      const F32 minimums = load(panel.minimums[at / kCodeGroup] + first);
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r) {
        sums[r] = fma(-minimums, splat(group_sum<Blocks::kGroup>(rows[r], at)), sums[r]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) store(out[r] + first, sums[r]);
}

// Adds the block that the panel holds. A unit is 32 rows, or the 16 that are left, with 16 columns.
template <class Blocks>
void add_blocks(const TilePanel& panel, int columns, const CodedPart* in, int64_t rows, TileSums* sums) {
  alignas(64) BlockDots dots[2];
  const int64_t vectors = (columns + kLanes - 1) / kLanes, tiles = (rows + kTileRows - 1) / kTileRows;
  const int64_t units = (tiles + 1) / 2 * vectors;
  const auto first_of = [&](int64_t u) { return static_cast<int>(u % vectors) * kLanes; };
  const auto tile_of = [&](int64_t u) { return u / vectors * 2; };
  const auto tiles_of = [&](int64_t u) { return tile_of(u) + 1 < tiles ? 2 : 1; };
  const auto make = [&](int64_t u) {
    block_dots<kDigits<Blocks>>(panel, first_of(u), in + tile_of(u) * kTileRows, tiles_of(u), dots[u % 2]);
  };
  asm volatile("" ::: "memory");  // the panel is written: instructions of tiles do not say what they read
  make(0);
  for (int64_t u = 0; u < units; ++u) {
    if (u + 1 < units) make(u + 1);
    for (int t = 0; t < tiles_of(u); ++t) {
      const int64_t row = (tile_of(u) + t) * kTileRows;
      add_scaled_block<Blocks>(panel, first_of(u), in + row, dots[u % 2][t], sums->rows + row);
    }
  }
}
#else
using TilePanel = Panel;
template <class Blocks>
inline void unpack_digits(const uint8_t* const (&)[kPanelColumns], TilePanel*) {}
template <class Blocks>
inline void add_blocks(const TilePanel&, int, const CodedPart*, int64_t, TileSums*) {}
#endif

}  // namespace
}  // namespace kvasir::KVASIR_LEVEL
