// Query rows and tiles of tokens in shared memory, for prompt attention.
#pragma once

#include <cfloat>

#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/primitives/softmax.cuh"
#include "kernels/cuda/prompt/prompt.h"

namespace kvasir::cuda {

constexpr int kQueryExponent = 14;  // of the greatest element of a query row

// D: head dims up to it, a multiple of 64; what is missing is computed as zeros. Parts: operands that stand for one.
template <int D, int kQueryParts_, int kKeyParts_, int kWeightParts_, int kWarps_>
struct PromptTile {
  static constexpr int kQueryParts = kQueryParts_, kKeyParts = kKeyParts_, kWeightParts = kWeightParts_;
  static constexpr int kWarps = kWarps_, kThreads = 32 * kWarps;
  static constexpr int kWarpTiles = D > 128 ? 1 : 2;  // of 16 rows
  static constexpr int kRows = 16 * kWarpTiles * kWarps;
  static constexpr int kTokens = D > 128 ? 32 : 64;
  static constexpr int kRowBytes = 2 * D;
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

// Queries of the block, each row multiplied by a power of two of its own; what turns products into scores goes to
// `factors`.
template <class Tile>
__device__ __forceinline__ void load_queries(const PromptRequest& request, int kv_head, int first_row, int rows,
                                             uint8_t* shared, float* factors) {
  constexpr int kPairs = (Tile::kRowBytes / 4 + 31) / 32;  // of channels, a lane
  constexpr int kTogether = 16 / kPairs;                   // rows whose loads are in flight
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = request.head_dim;
  for (int begin = warp * kTogether; begin < Tile::kRows; begin += Tile::kWarps * kTogether) {
    float2 x[kTogether][kPairs];
    // One type for all, or each load would be waited for where the type is looked at.
    with_pairs(request.queries, request.type, [&](auto load) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int row = first_row + begin + j;
        const int64_t head = static_cast<int64_t>(row / request.group) * request.kv_heads * request.group +
                             kv_head * request.group + row % request.group;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          const int c = 2 * (32 * i + lane);
          x[j][i] = row < rows && c < d ? load(head * d + c) : make_float2(0.0f, 0.0f);
        }
      }
    });
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      float most = 0.0f;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) most = fmaxf(most, fmaxf(fabsf(x[j][i].x), fabsf(x[j][i].y)));
      const RowScale scale = scale_of(max_over_warp(most));
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int c = 2 * (32 * i + lane);
        if (2 * c >= Tile::kRowBytes) continue;
        float even = x[j][i].x * scale.up, odd = x[j][i].y * scale.up;
#pragma unroll
        for (int part = 0; part < Tile::kQueryParts; ++part) {
          const uint32_t at = part * Tile::kQueryBytes + Tile::byte_of(begin + j, c / 8) + 2 * (c % 8);
          *reinterpret_cast<uint32_t*>(shared + at) = take_halves(even, odd);
        }
      }
      if (lane == 0) factors[begin + j] = fmaxf(request.scale * kLog2E * scale.down, FLT_MIN);
    }
  }
}

}  // namespace kvasir::cuda
