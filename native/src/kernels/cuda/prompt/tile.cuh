// Query rows and tiles of tokens in shared memory, for prompt attention.
#pragma once

#include <cfloat>

#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/primitives/softmax.cuh"
#include "kernels/cuda/prompt/instance.h"

namespace kvasir::cuda {

constexpr int kQueryExponent = 14;  // of the greatest element of a query row

// D: channels that are computed, a multiple of 16; what head dims lack of them is zeros. Lines of shared memory are of
// 64 channels; what D lacks of the last is never touched. Parts: operands that stand for one.
template <int D, int kQueryParts_, int kKeyParts_, int kWeightParts_, int kWarps_>
struct PromptTile {
  static constexpr int kQueryParts = kQueryParts_, kKeyParts = kKeyParts_, kWeightParts = kWeightParts_;
  static constexpr int kWarps = kWarps_, kThreads = 32 * kWarps;
  static constexpr int kWarpTiles = D > 128 ? 1 : 2;  // of 16 rows
  static constexpr int kRows = 16 * kWarpTiles * kWarps;
  static constexpr int kTokens = D > 128 ? 32 : 64;
  static constexpr int kOctets = D / 8, kRowBytes = 2 * ((D + 63) / 64 * 64);
  // Shared memory: queries, keys, values, then for each row a factor and the newest token that it sees.
  static constexpr int kQueryBytes = kRows * kRowBytes, kTokenBytes = kTokens * kRowBytes;
  static constexpr int kKeysAt = kQueryParts * kQueryBytes, kValuesAt = kKeysAt + kKeyParts * kTokenBytes;
  static constexpr int kFactorsAt = kValuesAt + kTokenBytes;
  static constexpr int kNewestAt = kFactorsAt + static_cast<int>(sizeof(float)) * kRows;
  static constexpr int kBytes = kNewestAt + static_cast<int>(sizeof(int)) * kRows;

  // Where eight channels of a row are. Octets change places from row to row, so that eight rows meet all banks.
  static __device__ __forceinline__ uint32_t byte_of(int row, int octet) {
    return row * kRowBytes + ((octet ^ (row % 8)) << 4);
  }
  // Where byte_of finds the octet 2 * pair further on, from where it finds octet 0 or 1: four places, and those 128
  // bytes behind each other.
  static __device__ __forceinline__ uint32_t further(uint32_t at, int pair) {
    return (at ^ (pair % 4) << 5) + pair / 4 * 128;
  }
};

// 16 bytes to shared memory, or zeros.
__device__ __forceinline__ void copy_or_clear(uint32_t to, const void* from, bool copied) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
               "r"(copied ? 16 : 0)
               : "memory");
}

// __syncthreads() that warps may reach in different places.
__device__ __forceinline__ void block_barrier() { asm volatile("barrier.sync 0;" ::: "memory"); }

// Rows of a tile; those behind `count`, and channels behind d, are 0.
template <class Tile>
__device__ __forceinline__ void copy_rows(uint32_t to, const uint16_t* from, int count, int d) {
  constexpr int kOctets = Tile::kRowBytes / 16;
  const int first = threadIdx.x / kOctets, octet = threadIdx.x % kOctets;
  if (octet >= Tile::kOctets) return;
  from += first * d + 8 * octet;
#pragma unroll
  for (int i = 0; i < Tile::kTokens * kOctets / Tile::kThreads; ++i) {
    const int row = first + i * (Tile::kThreads / kOctets);
    copy_or_clear(to + Tile::byte_of(row, octet), from, row < count && 8 * octet < d);
    from += Tile::kThreads / kOctets * d;
  }
}

// Two numbers rounded to float16; they become what is missing.
__device__ __forceinline__ uint32_t take_halves(float& even, float& odd) {
  const uint32_t pair = floats_to_halves(even, odd);
  const float2 taken = halves_to_floats(pair);
  even -= taken.x;
  odd -= taken.y;
  return pair;
}

// What a row is multiplied by, and its reciprocal: powers of two.
struct RowScale {
  float up, down;
};
__device__ __forceinline__ RowScale scale_of(float peak) {
  constexpr int kBias = 127, kMantissaBits = 23, kGreatest = 254;
  // By exponents; those of 0 and of what is not finite are as good as any.
  const auto exponent = static_cast<int>(__float_as_uint(peak) >> kMantissaBits);
  const int biased = min(max(exponent, kQueryExponent + 1), kGreatest);
  return {__uint_as_float(static_cast<uint32_t>(kBias + kQueryExponent + kBias - biased) << kMantissaBits),
          __uint_as_float(static_cast<uint32_t>(biased - kQueryExponent) << kMantissaBits)};
}

// Eight numbers of a type, from a multiple of eight on.
template <ElementType kType>
__device__ __forceinline__ void load_octet(const void* numbers, int64_t index, float (&x)[8]) {
  if constexpr (kType == ElementType::kFloat32) {
    const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(numbers) + index);
    const float4 a = from[0], b = from[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
    const uint4 four = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(numbers) + index);
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = kType == ElementType::kFloat16
                              ? halves_to_floats(words[i])
                              : make_float2(__uint_as_float(words[i] << 16), __uint_as_float(words[i] & 0xffff0000u));
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
}

// Queries of the block, each row multiplied by a power of two of its own; what turns products into scores goes to
// `factors`. A lane takes eight channels of a row.
template <class Tile>
__device__ __forceinline__ void load_queries(const PromptLaunch& launch, const LaunchedPrompt& prompt, int kv_head,
                                             int first_row, uint8_t* shared, float* factors) {
  constexpr int kLanes = Tile::kRowBytes / 16, kSideBySide = 32 / kLanes;  // lanes of a row, rows of a warp
  constexpr int kTurns = Tile::kRows / (Tile::kWarps * kSideBySide);
  constexpr int kTogether = kTurns < 8 ? kTurns : 8;  // whose loads are in flight
  static_assert(kTurns % kTogether == 0);
  const int octet = threadIdx.x % kLanes, d = launch.head_dim;
  const int first = static_cast<int>(threadIdx.x / 32) * (kTurns * kSideBySide) + threadIdx.x % 32 / kLanes;
#pragma unroll 1
  for (int begin = first; begin < first + kTurns * kSideBySide; begin += kTogether * kSideBySide) {
    float x[kTogether][8];
    const auto load = [&](auto load_one) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int row = first_row + begin + j * kSideBySide;
        const int64_t head = static_cast<int64_t>(row / launch.group) * launch.kv_heads * launch.group +
                             kv_head * launch.group + row % launch.group;
#pragma unroll
        for (float& number : x[j]) number = 0.0f;
        if (row < prompt.row_count && 8 * octet < d) load_one(head * d + 8 * octet, x[j]);
      }
    };
    // One type for all, or each load would be waited for where the type is looked at.
    if (launch.type == ElementType::kFloat32) {
      load([&](int64_t at, float(&to)[8]) { load_octet<ElementType::kFloat32>(prompt.queries, at, to); });
    } else if (launch.type == ElementType::kBFloat16) {
      load([&](int64_t at, float(&to)[8]) { load_octet<ElementType::kBFloat16>(prompt.queries, at, to); });
    } else {
      load([&](int64_t at, float(&to)[8]) { load_octet<ElementType::kFloat16>(prompt.queries, at, to); });
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int row = begin + j * kSideBySide;
      float most = 0.0f;
#pragma unroll
      for (const float number : x[j]) most = fmaxf(most, fabsf(number));
#pragma unroll
      for (int apart = kLanes / 2; apart > 0; apart /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
      }
      const RowScale scale = scale_of(most);
#pragma unroll
      for (float& number : x[j]) number *= scale.up;
#pragma unroll
      for (int part = 0; part < Tile::kQueryParts; ++part) {
        const uint4 halves = {take_halves(x[j][0], x[j][1]), take_halves(x[j][2], x[j][3]),
                              take_halves(x[j][4], x[j][5]), take_halves(x[j][6], x[j][7])};
        if (octet >= Tile::kOctets) continue;
        *reinterpret_cast<uint4*>(shared + part * Tile::kQueryBytes + Tile::byte_of(row, octet)) = halves;
      }
      if (octet == 0) factors[row] = fmaxf(launch.scale * kLog2E * scale.down, FLT_MIN);
    }
  }
}

}  // namespace kvasir::cuda
