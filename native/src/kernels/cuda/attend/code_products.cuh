// Contracts a part of a page with B fragments: unpacks codes to bytes by masking and multiplies on the tensor cores.
#pragma once

#include "kernels/cuda/attend/folded_factors.cuh"
#include "kernels/cuda/attend/ring.cuh"
#include "kernels/cuda/primitives/mma.cuh"

namespace kvasir::cuda {

// Groups are read in sets that hold kUnits fragments of even tiles and as many of odd ones (PartLayout::code_place).
template <int kBits>
struct CodeSet {
  static constexpr int kGroups = kBits == 3 ? 3 : kBits == 8 ? 2 : 1;
  static constexpr int kUnits = kBits == 1 || kBits == 3 ? 4 : kBits == 2 ? 2 : 1;
  uint32_t words[kGroups][4];

  // The fragments of unit `u`; odd ones hold codes times tile_factor.
  __device__ __forceinline__ void unpack(int u, uint32_t (&even)[4], uint32_t (&odd)[4]) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if constexpr (kBits == 1) {
        const uint32_t word = words[0][r] >> 2 * u;
        even[r] = word & 0x01010101u;
        odd[r] = word & 0x02020202u;
      } else if constexpr (kBits == 2) {
        const uint32_t word = words[0][r] >> 4 * u;
        even[r] = word & 0x03030303u;
        odd[r] = word & 0x0c0c0c0cu;
      } else if constexpr (kBits == 3) {
        const uint32_t low = words[u / 2][r] >> 4 * (u % 2);
        // The high bits of units 0..3 stand at bits 0, 1, 4, 5 (even) and two above (odd); they are needed at 2 and 4.
        const uint32_t high = u < 2 ? words[2][r] << (2 - u) : words[2][r] >> u;
        even[r] = (low & 0x03030303u) | (high & 0x04040404u);
        odd[r] = (low & 0x0c0c0c0cu) | (high & 0x10101010u);
      } else if constexpr (kBits == 4) {
        even[r] = words[0][r] & 0x0f0f0f0fu;
        odd[r] = words[0][r] & 0xf0f0f0f0u;
      } else {
        even[r] = words[0][r];
        odd[r] = words[1][r];
      }
    }
  }
};

// Codes of 16 bits: groups are low and high bytes of an even fragment, then of an odd one. As contract_codes below.
template <int kSteps, int kPairs, bool kSigned, int kTiles, class AnyReader, class Emit>
__device__ __forceinline__ void contract_wide(AnyReader& reader, const uint32_t (&fragments)[kTiles][2 * kSteps],
                                              Emit emit) {
  constexpr int kGroups = 4 * kPairs * kSteps;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    int sum[kTiles][4][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 four = reader.group((pair * kSteps + step) * 4 + i, kGroups);
        const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          mma_bytes<kSigned>(sum[n][i], words, fragments[n][2 * step], fragments[n][2 * step + 1]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int(&low)[4] = sum[n][2 * odd], (&high)[4] = sum[n][2 * odd + 1];
        emit(n, 2 * pair + odd, fmaf(joined(high[0], high[1]), 256.0f, joined(low[0], low[1])),
             fmaf(joined(high[2], high[3]), 256.0f, joined(low[2], low[3])));
      }
    }
  }
}

// Codes of 2 bits whose tiles come in fours. Where there are registers for all four tiles at once, three of them are
// masked, and bytes as they are give the sum of all; else two tiles at a time, all masked.
template <int kSteps, int kFours, bool kSigned, int kTiles, int kAtOnce, class AnyReader, class Emit>
__device__ __forceinline__ void contract_fours(AnyReader& reader, const uint32_t (&fragments)[kTiles][2 * kSteps],
                                               Emit emit) {
  static_assert(kAtOnce == 2 || kAtOnce == 4);
#pragma unroll
  for (int four = 0; four < kFours; ++four) {
    const uint8_t* const groups = reader.groups(four * kSteps, kSteps, kFours * kSteps);
#pragma unroll
    for (int begin = 0; begin < 4; begin += kAtOnce) {
      int sum[kAtOnce][kTiles][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint4 words = *reinterpret_cast<const uint4*>(groups + step * kGroupBytes);
#pragma unroll
        for (int t = 0; t < kAtOnce; ++t) {
          const uint32_t mask = t == 3 ? ~0u : 0x03030303u << 2 * (begin + t);
          const uint32_t codes[4] = {words.x & mask, words.y & mask, words.z & mask, words.w & mask};
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            mma_bytes<kSigned>(sum[t][n], codes, fragments[n][2 * step], fragments[n][2 * step + 1]);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        int first[kAtOnce], second[kAtOnce];  // of rows g and g + 8
#pragma unroll
        for (int t = 0; t < kAtOnce; ++t) {
          first[t] = 256 * sum[t][n][0] + sum[t][n][1];
          second[t] = 256 * sum[t][n][2] + sum[t][n][3];
        }
        if constexpr (kAtOnce == 4) {
          first[3] = first[3] - first[0] - first[1] - first[2];
          second[3] = second[3] - second[0] - second[1] - second[2];
        }
#pragma unroll
        for (int t = 0; t < kAtOnce; ++t) {
          emit(n, 4 * four + begin + t, __int2float_rn(first[t]), __int2float_rn(second[t]));
        }
      }
    }
  }
}

// As PartLayout::fours.
template <int kBits, int kSteps, int kPairs>
constexpr bool kInFours = kBits == 2 && in_fours(kSteps, kPairs);

// kSteps: x / 32. kPairs: y / 32. fragments: [heads / 4][2 * kSteps].
// emit(n, tile, sum, sum) gets the sums of rows g and g + 8 for heads 4n.. and each tile of 16 y, times tile_factor.
template <int kBits, int kSteps, int kPairs, bool kSigned, int kTiles, int kAtOnce = 2, class AnyReader, class Emit>
__device__ __forceinline__ void contract_codes(AnyReader& reader, const uint32_t (&fragments)[kTiles][2 * kSteps],
                                               Emit emit) {
  if constexpr (kBits == kWideBits) {
    contract_wide<kSteps, kPairs, kSigned>(reader, fragments, emit);
  } else if constexpr (kInFours<kBits, kSteps, kPairs>) {
    contract_fours<kSteps, kPairs / 2, kSigned, kTiles, kAtOnce>(reader, fragments, emit);
  } else {
    using Set = CodeSet<kBits>;
    constexpr int kSets = kPairs * kSteps / Set::kUnits;
    int even_sum[kTiles][4], odd_sum[kTiles][4];
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      Set set;
#pragma unroll
      for (int i = 0; i < Set::kGroups; ++i) {
        const uint4 four = reader.group(s * Set::kGroups + i, kSets * Set::kGroups);
        set.words[i][0] = four.x;
        set.words[i][1] = four.y;
        set.words[i][2] = four.z;
        set.words[i][3] = four.w;
      }
#pragma unroll
      for (int u = 0; u < Set::kUnits; ++u) {
        const int pair = (s * Set::kUnits + u) / kSteps;
        const int step = (s * Set::kUnits + u) % kSteps;
        uint32_t even[4], odd[4];
        set.unpack(u, even, odd);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          if (step == 0) {
#pragma unroll
            for (int i = 0; i < 4; ++i) even_sum[n][i] = odd_sum[n][i] = 0;
          }
          mma_bytes<kSigned>(even_sum[n], even, fragments[n][2 * step], fragments[n][2 * step + 1]);
          mma_bytes<kSigned>(odd_sum[n], odd, fragments[n][2 * step], fragments[n][2 * step + 1]);
          if (step == kSteps - 1) {
            const int(&even_total)[4] = even_sum[n], (&odd_total)[4] = odd_sum[n];
            emit(n, 2 * pair, joined(even_total[0], even_total[1]), joined(even_total[2], even_total[3]));
            emit(n, 2 * pair + 1, joined(odd_total[0], odd_total[1]), joined(odd_total[2], odd_total[3]));
          }
        }
      }
    }
  }
}

// Float16 elements. kSteps: x / 16. kRowTiles: y / 16. c holds floats.
template <int kSteps, int kRowTiles, int kTiles, class AnyReader, class Emit>
__device__ __forceinline__ void contract_halves(AnyReader& reader, const uint32_t (&fragments)[kTiles][2 * kSteps],
                                                Emit emit) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    float sum[kTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 words = reader.group(tile * kSteps + step, kRowTiles * kSteps);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        mma_halves(sum[n], words, fragments[n][2 * step], fragments[n][2 * step + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) emit(n, tile, sum[n]);
  }
}

}  // namespace kvasir::cuda
