// Integer products of tiered codes with rows of signed bytes, 32 tokens at a time: code_dots.h for the planes of
// codecs/tiered/format.h.
//
// Four columns of one tier are one vector of its plane, and a unit of the dot products is four such vectors, so units
// may straddle the border between tiers. Bytes are those of column 0 and up, the 4-bit tier first.
#pragma once

#include "codecs/tiered/format.h"
#include "kernels/cpu/code_dots.h"
#include "kernels/cpu/simd.h"

namespace kvasir::KVASIR_LEVEL {

constexpr int kChunk = 32;  // tokens

// The vectors that hold the codes of one chunk.
struct ChunkCodes {
  const uint8_t* wide;
  const uint8_t* narrow;
  int wide_vectors;
  int narrow_vectors;
};

inline ChunkCodes codes_of_chunk(const tiered::Layout& layout, const uint8_t* part, int chunk) {
  return {part + layout.wide_offset + chunk * layout.wide.block_bytes(),
          part + layout.narrow_offset + chunk / 2 * layout.narrow.block_bytes(),
          layout.wide.columns / tiered::kColumnsPerVector, layout.narrow.columns / tiered::kColumnsPerVector};
}

// The codes of kVectors registers of tokens, from token first on, in one vector of a plane. Two tokens of a chunk that
// are 16 apart share a word; kPair says which two of the 2-bit tier's four they are.
template <int kBits, int kVectors, int kPair>
inline void load_chunk(const uint8_t* vector, int first, U32 (&codes)[kVectors][4], int step) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int token = first + v * kLanes;
    const U32 words = load_words(vector + token % kPlaneLanes * 4);
    const int shift = kBits * (2 * kPair + token / kPlaneLanes);
    codes[v][step] = (words >> shift) & (kBits == 4 ? 0x0F0F0F0Fu : 0x03030303u);
  }
}

template <int kRows, int kVectors, int kPair>
inline void multiply_chunk(const ChunkCodes& from, int first, const int8_t* bytes, int32_t* totals) {
  I32 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = splat(0);
  }
  const int vectors = from.wide_vectors + from.narrow_vectors;
  const uint8_t* narrow = from.narrow - from.wide_vectors * tiered::kVectorBytes;  // as if both tiers were in it
  U32 codes[kVectors][4];
  int x = 0;
  for (; x + 4 <= from.wide_vectors; x += 4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      load_chunk<4, kVectors, 0>(from.wide + (x + i) * tiered::kVectorBytes, first, codes, i);
    }
    dot_unit<false, kRows, kVectors>(codes, bytes + x * tiered::kColumnsPerVector, kMaxSize, sums);
  }
  // What is left of a tier shares its unit with the next one, or with nothing.
  const auto mixed_unit = [&](int end) {
    if (x >= end) return;
    for (int i = 0; i < 4; ++i) {
      if (x + i < from.wide_vectors) {
        load_chunk<4, kVectors, 0>(from.wide + (x + i) * tiered::kVectorBytes, first, codes, i);
      } else if (x + i < vectors) {
        load_chunk<2, kVectors, kPair>(narrow + (x + i) * tiered::kVectorBytes, first, codes, i);
      } else {
        for (int v = 0; v < kVectors; ++v) codes[v][i] = U32{};
      }
    }
    dot_unit<false, kRows, kVectors>(codes, bytes + x * tiered::kColumnsPerVector, kMaxSize, sums);
    x += 4;
  };
  mixed_unit(from.wide_vectors);
  for (; x + 4 <= vectors; x += 4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      load_chunk<2, kVectors, kPair>(narrow + (x + i) * tiered::kVectorBytes, first, codes, i);
    }
    dot_unit<false, kRows, kVectors>(codes, bytes + x * tiered::kColumnsPerVector, kMaxSize, sums);
  }
  mixed_unit(vectors);
  settle(sums);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(totals + r * kMaxSize + first + v * kLanes, sums[r][v]);
  }
}

// totals[row * kMaxSize + i] = sum over columns of code(column, token i of the chunk) * bytes[row * kMaxSize + column].
// The bytes have been through arrange_rows. pair: 0 for even chunks, 1 for odd ones.
template <int kRows>
inline void multiply_chunk(const ChunkCodes& from, int pair, const int8_t* bytes, int32_t* totals) {
  constexpr int kVectors = kRegisters == 16 ? 1 : 2;
#pragma GCC unroll 4
  for (int first = 0; first < kChunk; first += kVectors * kLanes) {
    if (pair == 0) {
      multiply_chunk<kRows, kVectors, 0>(from, first, bytes, totals);
    } else {
      multiply_chunk<kRows, kVectors, 1>(from, first, bytes, totals);
    }
  }
}

}  // namespace kvasir::KVASIR_LEVEL
