// Prompt attention with tensor cores. A block takes some query rows of a kv head (all its query heads, token after
// token) and walks over tiles of tokens; a warp takes 16 or 32 of the rows, and has their scores, weights and outputs
// in registers. Loads of keys run while weights and outputs are computed, loads of values while scores are.
//
// Products of a tile are summed by tensor cores and added to outputs by ordinary ones, because tensor cores cut off
// where they should round: over thousands of tiles that would add up.
#pragma once

#include <cmath>

#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/shared_memory.h"
#include "kernels/cuda/prompt/instance.h"

namespace kvasir::cuda {

constexpr int kQueryExponent = 14;   // of the greatest element of a query row
constexpr int kWeightExponent = 14;  // of the greatest weight: small ones keep their bits
constexpr int64_t kFar = 1 << 30;    // tokens: further than any part reaches

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

  // Of eight channels of a row. Octets change places from row to row, so that eight rows meet all banks.
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

// x rounded to float16 as the low half of a word, and x becomes what is missing.
__device__ __forceinline__ uint32_t take_halves(float& even, float& odd) {
  const uint32_t pair = floats_to_halves(even, odd);
  const float2 taken = halves_to_floats(pair);
  even -= taken.x;
  odd -= taken.y;
  return pair;
}

// Numbers `index`, which is even, and the next.
__device__ __forceinline__ float2 load_pair(const void* numbers, ElementType type, int64_t index) {
  if (type == ElementType::kFloat32) {
    const float* pair = static_cast<const float*>(numbers) + index;
    return make_float2(pair[0], pair[1]);
  }
  const uint32_t word = static_cast<const uint32_t*>(numbers)[index / 2];
  if (type == ElementType::kFloat16) return halves_to_floats(word);
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
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
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int row = first_row + begin + j;
      const int64_t head = static_cast<int64_t>(row / request.group) * request.kv_heads * request.group +
                           kv_head * request.group + row % request.group;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int c = 2 * (32 * i + lane);
        x[j][i] =
            row < rows && c < d ? load_pair(request.queries, request.type, head * d + c) : make_float2(0.0f, 0.0f);
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      float most = 0.0f;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) most = fmaxf(most, fmaxf(fabsf(x[j][i].x), fabsf(x[j][i].y)));
      // Powers of two by their exponents; those of 0 and of what is not finite are as good as any.
      const auto exponent = static_cast<int>(__float_as_uint(max_over_warp(most)) >> 23);
      const int biased = min(max(exponent, kQueryExponent + 1), 254);
      const float up = __uint_as_float(static_cast<uint32_t>(127 + kQueryExponent + 127 - biased) << 23);
      const float down = __uint_as_float(static_cast<uint32_t>(biased - kQueryExponent) << 23);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int c = 2 * (32 * i + lane);
        if (2 * c >= Tile::kRowBytes) continue;
        float even = x[j][i].x * up, odd = x[j][i].y * up;
#pragma unroll
        for (int part = 0; part < Tile::kQueryParts; ++part) {
          const uint32_t at = part * Tile::kQueryBytes + Tile::byte_of(begin + j, c / 8) + 2 * (c % 8);
          *reinterpret_cast<uint32_t*>(shared + at) = take_halves(even, odd);
        }
      }
      if (lane == 0) factors[begin + j] = fmaxf(request.scale * 1.44269504088896341f * down, 1.1754944e-38f);
    }
  }
}

template <int D, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2)
    prompt_kernel(const __grid_constant__ PromptRequest request, const __grid_constant__ PromptRows part,
                  const int rows, const bool first) {
  constexpr int kTiles = Tile::kWarpTiles, kTokens = Tile::kTokens;
  extern __shared__ __align__(128) uint8_t shared[];
  const int d = request.head_dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int kv_head = blockIdx.y, split = blockIdx.z;
  // The last rows see most: they begin.
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::kRows;
  auto* const factors = reinterpret_cast<float*>(shared + Tile::kFactorsAt);
  load_queries<Tile>(request, kv_head, first_row, rows, shared, factors);
  // What rows see, as tokens of the part: those up to the newest, `reach` of them. A row behind the end sees nothing.
  auto* const newest = reinterpret_cast<int*>(shared + Tile::kNewestAt);
  const int64_t first_newest = request.first_query - part.position;
  const int reach = request.sliding_window > 0 ? static_cast<int>(min(request.sliding_window, kFar)) : kFar;
  for (int r = threadIdx.x; r < Tile::kRows; r += Tile::kThreads) {
    const int64_t token = first_newest + (first_row + r) / request.group;
    newest[r] = first_row + r < rows ? static_cast<int>(min(max(token, -kFar), kFar)) : -static_cast<int>(kFar);
  }
  __syncthreads();
  const int count = static_cast<int>(part.tokens);
  const int last = min(Tile::kRows, rows - first_row) - 1;
  const int begin_tile = max(newest[0] - reach + 1, 0) / kTokens;
  const int end_tile = (min(max(newest[last] + 1, 0), count) + kTokens - 1) / kTokens;
  const int tiles = max(end_tile - begin_tile, 0), splits = static_cast<int>(gridDim.z);
  const int begin = begin_tile + static_cast<int>(static_cast<int64_t>(tiles) * split / splits);
  const int end = begin_tile + static_cast<int>(static_cast<int64_t>(tiles) * (split + 1) / splits);
  // The first and the last row of the warp.
  const int warp_first = 16 * kTiles * warp, warp_last = min(warp_first + 16 * kTiles - 1, last);
  const bool idle = warp_first > last;
  const int oldest_newest = idle ? 0 : newest[warp_first], newest_newest = idle ? -1 : newest[warp_last];

  float peak[kTiles][2], sum[kTiles][2], output[kTiles][D / 8][4];
  const auto row_of = [&](int tile, int half) { return warp_first + 16 * tile + 8 * half + lane / 4; };
  const auto state_of = [&](int row) {
    const int64_t index = (static_cast<int64_t>(split) * request.kv_heads + kv_head) * rows + first_row + row;
    return request.states + index * (d + kPromptStateHead);
  };
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row_of(m, h);
      const bool known = !first && row <= last;
      const float* state = known ? state_of(row) : nullptr;
      peak[m][h] = known ? state[0] : -INFINITY;
      sum[m][h] = known && lane % 4 == 0 ? state[1] : 0.0f;  // lanes of a row add up in the end
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int c = 8 * n + 2 * (lane % 4);
        const float2 pair =
            known && c < d ? *reinterpret_cast<const float2*>(state + kPromptStateHead + c) : make_float2(0.0f, 0.0f);
        output[m][n][2 * h] = pair.x;
        output[m][n][2 * h + 1] = pair.y;
      }
    }
  }

  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int64_t head = kv_head * part.stride * d;
  const auto copy_keys = [&](int tile) {
    const int64_t offset = head + int64_t{tile} * kTokens * d;
    copy_rows<Tile>(base + Tile::kKeysAt, part.keys + offset, count - tile * kTokens, d);
    if constexpr (Tile::kKeyParts == 2) {
      copy_rows<Tile>(base + Tile::kKeysAt + Tile::kTokenBytes, part.keys_low + offset, count - tile * kTokens, d);
    }
  };
  // Where ldmatrix finds what this lane asks for: rows and octets of the first fragment.
  const uint32_t query_at = base + Tile::byte_of(16 * kTiles * warp + lane % 16, lane / 16);
  const uint32_t key_at = base + Tile::kKeysAt + Tile::byte_of(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  const uint32_t value_at = base + Tile::kValuesAt + Tile::byte_of(lane % 16, lane / 16);

  const auto copy_values = [&](int tile) {
    const int64_t offset = head + int64_t{tile} * kTokens * d;
    copy_rows<Tile>(base + Tile::kValuesAt, part.values + offset, count - tile * kTokens, d);
  };
  // The copies of a tile, as all warps do them: when keys are there, those of values begin; when scores are, those of
  // the next keys.
  const auto await_keys = [&](int tile) {
    wait_copies<0>();
    block_barrier();
    copy_values(tile);
    commit_copies();
  };
  const auto leave_keys = [&](int tile) {
    block_barrier();
    if (tile + 1 < end) copy_keys(tile + 1);
    commit_copies();
  };
  const auto await_values = [&] {
    wait_copies<1>();
    block_barrier();
  };

  if (begin < end) copy_keys(begin);
  commit_copies();
  if (idle) {
    for (int tile = begin; tile < end; ++tile) {
      await_keys(tile);
      leave_keys(tile);
      await_values();
    }
    return;
  }
  for (int tile = begin; tile < end; ++tile) {
    await_keys(tile);
    const int token = tile * kTokens;
    float score[kTiles][kTokens / 8][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) score[m][n][i] = 0.0f;
      }
    }
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint4 query[Tile::kQueryParts][kTiles];
#pragma unroll
      for (int q = 0; q < Tile::kQueryParts; ++q) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          query[q][m] = load_matrices(Tile::further(query_at, k) + q * Tile::kQueryBytes + m * 16 * Tile::kRowBytes);
        }
      }
#pragma unroll
      for (int n = 0; n < kTokens / 8; n += 2) {
#pragma unroll
        for (int p = 0; p < Tile::kKeyParts; ++p) {
          const uint4 key = load_matrices(Tile::further(key_at, k) + p * Tile::kTokenBytes + n * 8 * Tile::kRowBytes);
          // Small times small is left out.
#pragma unroll
          for (int q = 0; q < (p == 0 ? Tile::kQueryParts : 1); ++q) {
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
              mma_halves(score[m][n], query[q][m], key.x, key.y);
              mma_halves(score[m][n + 1], query[q][m], key.z, key.w);
            }
          }
        }
      }
    }

    leave_keys(tile);

    float keep[kTiles][2];
    uint4 weight[Tile::kWeightParts][kTiles][kTokens / 16];
    const bool cut = token + kTokens > min(oldest_newest + 1, count) || token <= newest_newest - reach;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (cut) {
          const int row_newest = newest[row_of(m, h)], row_last = min(row_newest, count - 1);
#pragma unroll
          for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const int at = token + 8 * n + 2 * (lane % 4) + i;
              if (at > row_last || at <= row_newest - reach) score[m][n][2 * h + i] = -INFINITY;
            }
          }
        }
        const float factor = factors[row_of(m, h)];
        float most = -INFINITY;
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) most = fmaxf(most, fmaxf(score[m][n][2 * h], score[m][n][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const float now = fmaxf(peak[m][h], most * factor);
        const float reference = now == -INFINITY ? 0.0f : now;
        keep[m][h] = exp2_approx(peak[m][h] - reference);
        peak[m][h] = now;
        const float offset = kWeightExponent - reference;
        float all = 0.0f;
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = score[m][n][2 * h + i];
            x = exp2_approx(fmaf(x, factor, offset));
            all += x;
          }
        }
        sum[m][h] = fmaf(sum[m][h], keep[m][h], all);
      }
      // What a lane has of two columns of C is what it needs of A.
#pragma unroll
      for (int k = 0; k < kTokens / 16; ++k) {
#pragma unroll
        for (int w = 0; w < Tile::kWeightParts; ++w) {
          float(&a)[4] = score[m][2 * k], (&b)[4] = score[m][2 * k + 1];
          weight[w][m][k].x = take_halves(a[0], a[1]);
          weight[w][m][k].y = take_halves(a[2], a[3]);
          weight[w][m][k].z = take_halves(b[0], b[1]);
          weight[w][m][k].w = take_halves(b[2], b[3]);
        }
      }
    }

    await_values();
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      float added[kTiles][2][4] = {};
#pragma unroll
      for (int k = 0; k < kTokens / 16; ++k) {
        const uint4 value = load_transposed_matrices(Tile::further(value_at, n / 2) + k * 16 * Tile::kRowBytes);
#pragma unroll
        for (int w = 0; w < Tile::kWeightParts; ++w) {
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            mma_halves(added[m][0], weight[w][m][k], value.x, value.y);
            mma_halves(added[m][1], weight[w][m][k], value.z, value.w);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          output[m][n][i] = fmaf(output[m][n][i], keep[m][i / 2], added[m][0][i]);
          output[m][n + 1][i] = fmaf(output[m][n + 1][i], keep[m][i / 2], added[m][1][i]);
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[m][h] += __shfl_xor_sync(0xffffffffu, sum[m][h], 1);
      sum[m][h] += __shfl_xor_sync(0xffffffffu, sum[m][h], 2);
      const int row = row_of(m, h);
      if (row > last) continue;
      float* state = state_of(row);
      if (lane % 4 == 0) *reinterpret_cast<float2*>(state) = make_float2(peak[m][h], sum[m][h]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int c = 8 * n + 2 * (lane % 4);
        if (c >= d) continue;
        *reinterpret_cast<float2*>(state + kPromptStateHead + c) =
            make_float2(output[m][n][2 * h], output[m][n][2 * h + 1]);
      }
    }
  }
}

constexpr int kLeastSharedBytes = 99 << 10;  // that a block may have on any device from compute capability 8.0 on

inline bool shared_memory_has(int bytes) {
  int most = 0;
  return most_shared_memory(&most) == cudaSuccess && bytes <= most;
}

template <int D>
struct PromptInstanceOf {
  static constexpr int kWarps = 4;

  template <class Tile>
  static cudaError_t launch_as(const PromptRequest& request, const PromptRows& rows, const PromptDivision& division,
                               bool first, cudaStream_t stream) {
    const auto kernel = prompt_kernel<D, Tile>;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kBytes);
    if (error != cudaSuccess) return error;
    const dim3 grid((division.rows + Tile::kRows - 1) / Tile::kRows, request.kv_heads, division.splits);
    kernel<<<grid, Tile::kThreads, Tile::kBytes, stream>>>(request, rows, division.rows, first);
    return cudaGetLastError();
  }

  template <int kQueryParts, int kKeyParts, int kWeightParts>
  static cudaError_t launch_with(const PromptRequest& request, const PromptRows& rows, const PromptDivision& division,
                                 bool first, cudaStream_t stream) {
    using Tile = PromptTile<D, kQueryParts, kKeyParts, kWeightParts, kWarps>;
    if constexpr (Tile::kBytes > kLeastSharedBytes) {
      using Small = PromptTile<D, kQueryParts, kKeyParts, kWeightParts, kWarps / 2>;
      static_assert(Small::kBytes <= kLeastSharedBytes);
      if (!shared_memory_has(Tile::kBytes)) return launch_as<Small>(request, rows, division, first, stream);
    }
    return launch_as<Tile>(request, rows, division, first, stream);
  }

  static cudaError_t launch(const PromptRequest& request, const PromptRows& rows, const PromptDivision& division,
                            bool first, cudaStream_t stream) {
    // Numbers of 16 bits need no second operand.
    const bool wide = request.type == ElementType::kFloat32;
    switch (request.precision) {
      case PromptPrecision::kFast:
        return launch_with<1, 1, 1>(request, rows, division, first, stream);
      case PromptPrecision::kExact:
        return wide ? launch_with<2, 2, 1>(request, rows, division, first, stream)
                    : launch_with<1, 2, 1>(request, rows, division, first, stream);
      case PromptPrecision::kHalves:
        return wide ? launch_with<2, 1, 2>(request, rows, division, first, stream)
                    : launch_with<1, 1, 2>(request, rows, division, first, stream);
      default:
        return wide ? launch_with<2, 2, 2>(request, rows, division, first, stream)
                    : launch_with<1, 2, 2>(request, rows, division, first, stream);
    }
  }

  static constexpr PromptInstance value = {PromptTile<D, 1, 1, 1, kWarps>::kRows, launch};
};

}  // namespace kvasir::cuda
