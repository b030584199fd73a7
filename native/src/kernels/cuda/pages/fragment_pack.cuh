// Codes of a slab of rows in the fragment order of layout/fragments.h: what one lane of one warp packs.
//
// `Fetch` brings elements: fetch(x, y, pairs) for an 8 y x 32 x piece of the matrix whose corner is (x, y); pairs[i]
// are the float16 bits of the elements x + 8 i + 2 (lane % 4) and the next x at y + lane / 4. That is what ldmatrix
// returns to a lane from rows in shared memory, and in which order a word of a group wants them.
#pragma once

#include "kernels/cuda/pages/quantise.cuh"

#ifdef __CUDA_ARCH__
#define KVASIR_UNROLL _Pragma("unroll")
#else
#define KVASIR_UNROLL
#endif

namespace kvasir::cuda {

// One side's part, or a stretch of it: kSpan channels of 128 tokens.
struct Slab {
  PartLayout part;
  bool keys;       // x are channels, else tokens
  bool per_token;  // parameters belong to tokens, else to channels
  int stretch;     // the slab is channels kSpan * stretch .. of a part with more of them
};

// What two neighbouring tokens or channels are quantised by: one vector load.
struct alignas(16) ScalePair {
  float lo[2];
  float inverse[2];
};

// By token or by channel of the slab.
struct SlabQuantisers {
  const ScalePair* scales;  // by index / 2
  const float* range;
  const double* inverse16;  // set for progressive codes of 16 bits alone
  bool cells;               // uniform::Codes::cells
  bool cut;                 // progressive codes from end to end that do not shrink by the equivalent shift
};

KVASIR_HOST_DEVICE static inline uint32_t permuted(uint32_t low, uint32_t high, uint32_t selector) {
#ifdef __CUDA_ARCH__
  return __byte_perm(low, high, selector);
#else
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return out;
#endif
}

KVASIR_HOST_DEVICE static inline float element_of(uint32_t pair, int odd) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(static_cast<uint16_t>(odd ? pair >> 16 : pair)));
#else
  return half_to_float(static_cast<uint16_t>(odd ? pair >> 16 : pair));
#endif
}

// Byte `kByte` of each code: even x of the two octets, then odd x.
template <int kByte>
KVASIR_HOST_DEVICE inline uint32_t joined_bytes(const uint32_t (&even)[2], const uint32_t (&odd)[2]) {
  constexpr uint32_t kPick = kByte | (4 + kByte) << 4;
  return permuted(permuted(even[0], even[1], kPick), permuted(odd[0], odd[1], kPick), 0x5410);
}

template <int kBits, bool kExact>
KVASIR_HOST_DEVICE inline uint32_t slab_code(float x, float lo, float inverse, const SlabQuantisers& q, int index) {
  if constexpr (!kExact) {
    return uniform_code(x, lo, inverse, q.cells, (1 << (kBits == kWideBits ? 16 : kBits)) - 1);
  } else if constexpr (kBits == kWideBits) {
    return progressive_code16(x, lo, q.inverse16[index], q.range + index, q.cells);
  } else {
    if (q.cut) return cut_code(x, lo, q.range[index], kBits);
    return progressive_code<kBits>(x, lo, inverse, q.range + index, q.cells);
  }
}

struct FragmentWords {
  uint32_t low[4];
  uint32_t high[4];  // upper bytes of 16-bit codes
};

// A lane's words of the fragment at (x0, y0): 16 y x 32 x. kFolded: parameters belong to x, and `scales` are those of
// the lane's x, by octet.
template <int kBits, bool kExact, bool kFolded, class Fetch>
KVASIR_HOST_DEVICE inline FragmentWords fragment_words(int x0, int y0, int lane, const ScalePair (&scales)[4],
                                                       const SlabQuantisers& q, const Fetch& fetch) {
  FragmentWords words = {};
  KVASIR_UNROLL
  for (int half = 0; half < 2; ++half) {
    uint32_t pairs[4];
    fetch(x0, y0 + 8 * half, pairs);
    const int y = y0 + 8 * half + lane / 4;
    float lo = 0.0f, inverse = 0.0f;
    if constexpr (!kFolded) {
      lo = q.scales[y / 2].lo[y % 2];
      inverse = q.scales[y / 2].inverse[y % 2];
    }
    KVASIR_UNROLL
    for (int word = 0; word < 2; ++word) {
      uint32_t codes[2][2];  // of even and odd x, by octet
      KVASIR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int octet = 2 * word + i;
        KVASIR_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
          const int index = kFolded ? x0 + 8 * octet + 2 * (lane % 4) + odd : y;
          if constexpr (kFolded) {
            lo = scales[octet].lo[odd];
            inverse = scales[octet].inverse[odd];
          }
          codes[odd][i] = slab_code<kBits, kExact>(element_of(pairs[octet], odd), lo, inverse, q, index);
        }
      }
      words.low[half + 2 * word] = joined_bytes<0>(codes[0], codes[1]);
      if (kBits == kWideBits) words.high[half + 2 * word] = joined_bytes<1>(codes[0], codes[1]);
    }
  }
  return words;
}

// All that a lane has to pack. `store(group, words)` writes its four words of a group of the part.
template <int kBits, bool kExact, bool kFolded, int kSpan, class Fetch, class Store>
KVASIR_HOST_DEVICE inline void pack_slab(const Slab& slab, const SlabQuantisers& q, int warp, int warps, int lane,
                                         const Fetch& fetch, const Store& store) {
  constexpr int kUnits = kBits == 1 || kBits == 3 ? 4 : kBits == 2 ? 2 : 1;  // that share groups
  constexpr int kSets = kSpan * kPageTokens / 1024 / kUnits;
  const int steps = (slab.keys ? kSpan : kPageTokens) / 32;  // units of the slab along x
  for (int set = warp; set < kSets; set += warps) {
    uint32_t packed[kBits == 3 ? 3 : 1][4] = {};
    int first = 0;
    KVASIR_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      const bool fours = kBits == 2 && slab.part.fours();
      const int y_step = fours ? 2 * (set / steps) + u : (set * kUnits + u) / steps;
      const int x_step = fours ? set % steps : (set * kUnits + u) % steps;
      const int row_units = slab.part.x_size / 32, column = slab.stretch * (kSpan / 32) + x_step;
      const int unit = y_step * row_units + column;  // as in code_place
      if (u == 0) first = fours ? kUnits * (y_step / 2 * row_units + column) : unit;
      ScalePair scales[4] = {};
      KVASIR_UNROLL
      for (int octet = 0; octet < 4; ++octet) {
        if constexpr (kFolded) scales[octet] = q.scales[16 * x_step + 4 * octet + lane % 4];
      }
      KVASIR_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        const FragmentWords words =
            fragment_words<kBits, kExact, kFolded>(32 * x_step, 32 * y_step + 16 * odd, lane, scales, q, fetch);
        if constexpr (kBits == kWideBits) {
          store(2 * (2 * unit + odd), words.low);
          store(2 * (2 * unit + odd) + 1, words.high);
        } else if constexpr (kBits == 8) {
          store(2 * unit + odd, words.low);
        } else {
          KVASIR_UNROLL
          for (int i = 0; i < 4; ++i) {
            if constexpr (kBits == 3) {
              packed[u / 2][i] |= (words.low[i] & 0x03030303u) << (4 * (u % 2) + 2 * odd);
              packed[2][i] |= (words.low[i] >> 2 & 0x01010101u) << (u / 2 * 4 + u % 2 + 2 * odd);
            } else {
              packed[0][i] |= words.low[i] << (2 * kBits * u + kBits * odd);
            }
          }
        }
      }
    }
    if constexpr (kBits == 3) {
      for (int i = 0; i < 3; ++i) store(first / 4 * 3 + i, packed[i]);
    } else if constexpr (kBits < 8) {
      store(first / kUnits, packed[0]);
    }
  }
}

// Calls the pack_slab for a width; kExact for the codec progressive, which has 2, 4, 8 and 16 bits.
template <bool kExact, bool kFolded, int kSpan, class Fetch, class Store>
KVASIR_HOST_DEVICE inline void pack_width(const Slab& slab, const SlabQuantisers& q, int warp, int warps, int lane,
                                          const Fetch& fetch, const Store& store) {
  switch (slab.part.bits) {
    case 1:
      if constexpr (!kExact) pack_slab<1, false, kFolded, kSpan>(slab, q, warp, warps, lane, fetch, store);
      return;
    case 2:
      return pack_slab<2, kExact, kFolded, kSpan>(slab, q, warp, warps, lane, fetch, store);
    case 3:
      if constexpr (!kExact) pack_slab<3, false, kFolded, kSpan>(slab, q, warp, warps, lane, fetch, store);
      return;
    case 4:
      return pack_slab<4, kExact, kFolded, kSpan>(slab, q, warp, warps, lane, fetch, store);
    case 8:
      return pack_slab<8, kExact, kFolded, kSpan>(slab, q, warp, warps, lane, fetch, store);
    default:
      return pack_slab<kWideBits, kExact, kFolded, kSpan>(slab, q, warp, warps, lane, fetch, store);
  }
}

// Any codes. Keys per token are progressive alone.
template <int kSpan, class Fetch, class Store>
KVASIR_HOST_DEVICE inline void pack_codes(const Slab& slab, bool exact, const SlabQuantisers& q, int warp, int warps,
                                          int lane, const Fetch& fetch, const Store& store) {
  if (slab.keys && slab.per_token) return pack_width<true, false, kSpan>(slab, q, warp, warps, lane, fetch, store);
  if (exact) return pack_width<true, true, kSpan>(slab, q, warp, warps, lane, fetch, store);
  pack_width<false, true, kSpan>(slab, q, warp, warps, lane, fetch, store);
}

// Float16 elements: four 8 x 8 matrices, one group. `fetch16(x, y, words)` brings the elements of word w at
// x + 8 (w / 2) + 2 (lane % 4) and the next x, y + 8 (w % 2) + lane / 4.
template <int kSpan, class Fetch16, class Store>
KVASIR_HOST_DEVICE inline void pack_halves(const Slab& slab, int warp, int warps, const Fetch16& fetch16,
                                           const Store& store) {
  const int steps = (slab.keys ? kSpan : kPageTokens) / 16;
  for (int i = warp; i < kSpan * kPageTokens / 256; i += warps) {
    uint32_t words[4];
    fetch16(i % steps * 16, i / steps * 16, words);
    store(i / steps * (slab.part.x_size / 16) + slab.stretch * (kSpan / 16) + i % steps, words);
  }
}

}  // namespace kvasir::cuda
