// Integer products of spectral codes with rows of signed bytes: code_dots.h for the planes of codecs/spectral/format.h.
#pragma once

#include "codecs/spectral/format.h"
#include "kernels/cpu/code_dots.h"
#include "kernels/cpu/simd.h"

namespace kvasir::KVASIR_LEVEL {

// Consecutive columns of all planes, in multiples of eight.
struct ColumnRange {
  const uint8_t* plane[spectral::kPlanes];  // where its columns of the range begin
  int all[spectral::kPlanes];               // columns of the plane
  int count[spectral::kPlanes];             // of those in the range
};

// Keys. Registers of tokens, each with its place in the vectors of a plane.
template <int kBits, int kVectors>
struct TokenVectors {
  const uint8_t* words[kVectors];
  int shift[kVectors];

  TokenVectors(const uint8_t* plane, int columns, int first) {
    constexpr int kTokens = kPlaneLanes * (8 / kBits);  // of a vector
    for (int v = 0; v < kVectors; ++v) {
      const int token = first + v * kLanes;
      words[v] = plane + static_cast<size_t>(token / kTokens) * (columns / 4) * 64 + token % kPlaneLanes * 4;
      shift[v] = token % kTokens / kPlaneLanes * kBits;
    }
  }

  // Codes of four columns.
  U32 at(int v, int vector) const {
    constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);
    return (load_words(words[v] + static_cast<size_t>(vector) * 64) >> shift[v]) & kMask;
  }
};

// Units are sixteen columns. Of a plane that ends in the middle of one, the first half waits for the next plane.
template <int kRows, int kVectors>
class UnitDots {
 public:
  UnitDots(const int8_t* bytes, I32 (&sums)[kRows][kVectors]) : bytes_(bytes), sums_(sums) {}

  template <int kBits>
  void add(const TokenVectors<kBits, kVectors>& from, int columns) {
    int vector = 0;
    if (waiting_ && columns > 0) {
      U32 codes[kVectors][4];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        codes[v][0] = half_[v][0];
        codes[v][1] = half_[v][1];
        codes[v][2] = from.at(v, 0);
        codes[v][3] = from.at(v, 1);
      }
      dot(codes);
      vector = 2;
      waiting_ = false;
    }
    for (; vector + 4 <= columns / 4; vector += 4) {
      U32 codes[kVectors][4];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) codes[v][i] = from.at(v, vector + i);
      }
      dot(codes);
    }
    if (vector < columns / 4) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        half_[v][0] = from.at(v, vector);
        half_[v][1] = from.at(v, vector + 1);
      }
      waiting_ = true;
    }
  }

  void finish() {
    if (!waiting_) return;
    U32 codes[kVectors][4];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      codes[v][0] = half_[v][0];
      codes[v][1] = half_[v][1];
      codes[v][2] = codes[v][3] = U32{};
    }
    dot(codes);
  }

 private:
  void dot(U32 (&codes)[kVectors][4]) {
    dot_unit<false, kRows, kVectors>(codes, bytes_, kMaxSize, sums_);
    bytes_ += kUnit;
  }

  const int8_t* bytes_;
  I32 (&sums_)[kRows][kVectors];
  U32 half_[kVectors][2] = {};
  bool waiting_ = false;
};

// totals[row][token] = sum over the columns of code * bytes[row][column - first], for all tokens of the page. The bytes
// have been through arrange_rows.
template <int kRows>
void multiply_columns(const ColumnRange& from, const int8_t* bytes, int32_t* totals) {
  constexpr int kVectors = kRegisters == 16 ? 1 : kRows <= 2 ? 4 : 2;
  for (int first = 0; first < kPageTokens; first += kVectors * kLanes) {
    I32 sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = splat(0);
    }
    UnitDots<kRows, kVectors> dots(bytes, sums);
    dots.add(TokenVectors<4, kVectors>(from.plane[0], from.all[0], first), from.count[0]);
    dots.add(TokenVectors<2, kVectors>(from.plane[1], from.all[1], first), from.count[1]);
    dots.add(TokenVectors<1, kVectors>(from.plane[2], from.all[2], first), from.count[2]);
    dots.finish();
    settle(sums);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(totals + r * kMaxSize + first + v * kLanes, sums[r][v]);
    }
  }
}

// Values. Sixteen columns: two tiles of eight, whose vectors are 32 bytes long.
constexpr int kTileRegisters = kPlaneLanes / kLanes;

#if defined(__AVX512VNNI__)
inline U32 tile_words(const uint8_t* first, const uint8_t* second, int) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second));
  return reinterpret_cast<U32>(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
}
#else
inline U32 tile_words(const uint8_t* first, const uint8_t* second, int v) {
  const int lane = v * kLanes;
  return load_words(lane < spectral::kTile ? first + lane * 4 : second + (lane - spectral::kTile) * 4);
}
#endif

// Codes of unit `unit`, sixteen tokens.
template <int kBits>
inline void tile_codes(const uint8_t* first, const uint8_t* second, int unit, int v, U32 (&codes)[4]) {
  constexpr int kVector = 32;
  constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);
  if constexpr (kBits == 4) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const size_t at = static_cast<size_t>(2 * unit + i) * kVector;
      const U32 words = tile_words(first + at, second + at, v);
      codes[2 * i] = words & kMask;
      codes[2 * i + 1] = (words >> 4) & kMask;
    }
  } else {
    const size_t at = static_cast<size_t>(kBits == 2 ? unit : unit / 2) * kVector;
    const U32 words = tile_words(first + at, second + at, v) >> (kBits == 2 ? 0 : unit % 2 * 4);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) codes[i] = (words >> (kBits * i)) & kMask;
  }
}

// totals[row][i] = sum over the tokens of code * bytes[row][token], for the columns of both tiles.
template <int kBits, int kRows>
void multiply_tiles(const uint8_t* first, const uint8_t* second, const int8_t* bytes, int32_t* totals) {
  constexpr int kVectors = kRegisters == 16 || kTileRegisters == 1 ? 1 : kRows <= 2 ? kTileRegisters : 2;
#pragma GCC unroll 4
  for (int v0 = 0; v0 < kTileRegisters; v0 += kVectors) {
    I32 sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = splat(0);
    }
    for (int unit = 0; unit < kPageTokens / kUnit; ++unit) {
      U32 codes[kVectors][4];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) tile_codes<kBits>(first, second, unit, v0 + v, codes[v]);
      dot_unit<false, kRows, kVectors>(codes, bytes + unit * kUnit, kMaxSize, sums);
    }
    settle(sums);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(totals + r * kMaxSize + (v0 + v) * kLanes, sums[r][v]);
    }
  }
}

using MultiplyColumns = void (*)(const ColumnRange&, const int8_t*, int32_t*);
using MultiplyTiles = void (*)(const uint8_t*, const uint8_t*, const int8_t*, int32_t*);

inline MultiplyColumns multiply_columns_for(int rows) {
  constexpr MultiplyColumns kByRows[kMaxByteRows] = {multiply_columns<1>, multiply_columns<2>, multiply_columns<3>,
                                                     multiply_columns<4>, multiply_columns<5>, multiply_columns<6>,
                                                     multiply_columns<7>, multiply_columns<8>};
  return kByRows[rows - 1];
}

template <int kBits>
inline MultiplyTiles multiply_tiles_of(int rows) {
  constexpr MultiplyTiles kByRows[kMaxByteRows] = {
      multiply_tiles<kBits, 1>, multiply_tiles<kBits, 2>, multiply_tiles<kBits, 3>, multiply_tiles<kBits, 4>,
      multiply_tiles<kBits, 5>, multiply_tiles<kBits, 6>, multiply_tiles<kBits, 7>, multiply_tiles<kBits, 8>};
  return kByRows[rows - 1];
}

inline MultiplyTiles multiply_tiles_for(int bits, int rows) {
  return bits == 4 ? multiply_tiles_of<4>(rows) : bits == 2 ? multiply_tiles_of<2>(rows) : multiply_tiles_of<1>(rows);
}

}  // namespace kvasir::KVASIR_LEVEL
