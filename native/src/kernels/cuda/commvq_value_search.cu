// Bits of CommVQ's values: the verbs `decide` and `flip` of commvq/kernels.h. Compiled without contraction
// (CMakeLists.txt): the arithmetic is the host's, operation by operation.
//
// Both lower s K s - 2 h s for the bits s of a token, K the products of the codebook's rows, and carry its slopes
// K s - h along.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/commvq_value_parts.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/shared_memory.h"

namespace kvasir::cuda {
namespace {

constexpr int kPanel = 32;  // bits that are decided together
constexpr int kTokens = 16;
constexpr int kThreads = 256;
constexpr int kWarpTokens = kTokens / (kThreads / 32);
constexpr int kFour = 4;

// Whether bit n is set depends on those before it. A panel of bits is decided by its own corner of the gram, a lane for
// each bit; then all slopes take the panel's rows at once, which is a product of 0s and 1s with the gram.
__global__ void __launch_bounds__(kThreads, 2) decide(ValueSearch search, ValueScratch scratch) {
  __shared__ float corner[kPanel][kPanel];
  __shared__ float set[kPanel][kTokens];
  const int codes = search.page.codes, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) * kTokens;
  float* const slopes = scratch.slopes + first_token * codes;
  for (int first = 0; first < codes; first += kPanel) {
    const int count = min(kPanel, codes - first);
    for (int i = threadIdx.x; i < kPanel * kPanel; i += kThreads) {
      const int bit = i / kPanel, n = i % kPanel;
      const bool there = bit < count && n < count;
      corner[bit][n] = there ? __ldg(search.gram + static_cast<int64_t>(first + bit) * codes + first + n) : 0.0f;
    }
    __syncthreads();

    float slope[kWarpTokens];
    uint32_t bits[kWarpTokens] = {};
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) {
      slope[i] = lane < count ? slopes[static_cast<int64_t>(warp * kWarpTokens + i) * codes + first + lane] : 0.0f;
    }
    const float limit = lane < count ? __ldg(search.thresholds + first + lane) * corner[lane][lane] : 0.0f;
    for (int bit = 0; bit < count; ++bit) {
      const float step = corner[bit][lane];
#pragma unroll
      for (int i = 0; i < kWarpTokens; ++i) {
        if (!__shfl_sync(0xffffffffu, -slope[i] > limit, bit)) continue;
        slope[i] += step;
        bits[i] |= 1u << bit;
      }
    }
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) {
      const int token = warp * kWarpTokens + i;
      set[lane][token] = (bits[i] >> lane & 1) != 0 ? 1.0f : 0.0f;
      if (lane == 0) scratch.bits[(first_token + token) * scratch.words + first / kPanel] = bits[i];
    }
    __syncthreads();

    for (int n = kFour * static_cast<int>(threadIdx.x); n < codes; n += kFour * kThreads) {
      float4 all[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        all[t] = *reinterpret_cast<const float4*>(slopes + static_cast<int64_t>(t) * codes + n);
      }
#pragma unroll 4
      for (int bit = 0; bit < count; ++bit) {
        const float4 step =
            __ldg(reinterpret_cast<const float4*>(search.gram + static_cast<int64_t>(first + bit) * codes + n));
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float factor = set[bit][t];  // 0 or 1: fused or not, the sum is the same
          all[t].x = fmaf(factor, step.x, all[t].x);
          all[t].y = fmaf(factor, step.y, all[t].y);
          all[t].z = fmaf(factor, step.z, all[t].z);
          all[t].w = fmaf(factor, step.w, all[t].w);
        }
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        *reinterpret_cast<float4*>(slopes + static_cast<int64_t>(t) * codes + n) = all[t];
      }
    }
    __syncthreads();
  }
}

// The bit whose flip changes the error most, the first of equals.
struct Least {
  float change = INFINITY;
  int bit = 0;

  __device__ __forceinline__ void add(float other, int other_bit) {
    if (other < change) change = other, bit = other_bit;
  }
  // Over a warp.
  __device__ __forceinline__ void join() {
    for (int mask = 1; mask < 32; mask *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, change, mask);
      const int other_bit = __shfl_xor_sync(0xffffffffu, bit, mask);
      if (other < change || (other == change && other_bit < bit)) change = other, bit = other_bit;
    }
  }
};

// A warp for each token; slopes and signs (-1 where a bit is set) in shared memory.
__global__ void __launch_bounds__(kThreads) flip(ValueSearch search, int64_t tokens, int limit, ValueScratch scratch) {
  extern __shared__ float4 dynamic[];
  const int codes = search.page.codes, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  if (token >= tokens) return;
  float* const slopes = reinterpret_cast<float*>(dynamic) + warp * 2 * codes;
  float* const signs = slopes + codes;
  uint32_t* const bits = scratch.bits + token * scratch.words;
  // direction * step is added to all slopes first.
  const auto look = [&](const float* steps, float direction) {
    Least least;
    for (int n = kFour * lane; n < codes; n += kFour * 32) {
      float4 slope = *reinterpret_cast<const float4*>(slopes + n);
      const float4 sign = *reinterpret_cast<const float4*>(signs + n);
      if (steps != nullptr) {
        const float4 step = __ldg(reinterpret_cast<const float4*>(steps + n));
        slope.x += direction * step.x;
        slope.y += direction * step.y;
        slope.z += direction * step.z;
        slope.w += direction * step.w;
        *reinterpret_cast<float4*>(slopes + n) = slope;
      }
      const float4 own = __ldg(reinterpret_cast<const float4*>(search.diagonal() + n));
      least.add(own.x + 2.0f * sign.x * slope.x, n);
      least.add(own.y + 2.0f * sign.y * slope.y, n + 1);
      least.add(own.z + 2.0f * sign.z * slope.z, n + 2);
      least.add(own.w + 2.0f * sign.w * slope.w, n + 3);
    }
    least.join();
    return least;
  };

  for (int n = lane; n < codes; n += 32) {
    slopes[n] = scratch.slopes[token * codes + n];
    signs[n] = (bits[n / 32] >> n % 32 & 1) != 0 ? -1.0f : 1.0f;
  }
  __syncwarp();
  Least least = look(nullptr, 0.0f);
  for (int flips = 0; flips < limit; ++flips) {
    // A change that rounding could have made is none: the loop must end.
    if (!(least.change < -1e-6f * __ldg(search.diagonal() + least.bit))) break;
    const float direction = signs[least.bit];
    __syncwarp();
    if (lane == 0) signs[least.bit] = -direction;
    __syncwarp();
    least = look(search.gram + static_cast<int64_t>(least.bit) * codes, direction);
  }
  for (int first = 0; first < codes; first += 32) {
    const bool is_set = first + lane < codes && signs[first + lane] < 0.0f;
    const uint32_t word = __ballot_sync(0xffffffffu, is_set);
    if (lane == 0) bits[first / 32] = word;
  }
}

constexpr int kFlipShared = 64 << 10;  // of a block, but for a single token
// Descents end long before: this is for rounding that goes in circles.
constexpr int kFlipsPerBit = 4;

}  // namespace

cudaError_t decide_bits(const ValueSearch& search, int64_t tokens, const ValueScratch& scratch, cudaStream_t stream) {
  static_assert(kTokensPerPage % kTokens == 0, "tokens are those of whole pages");
  decide<<<static_cast<unsigned>(tokens / kTokens), kThreads, 0, stream>>>(search, scratch);
  return cudaGetLastError();
}

cudaError_t flip_bits(const ValueSearch& search, int64_t tokens, const ValueScratch& scratch, cudaStream_t stream) {
  const int token_bytes = 2 * search.page.codes * static_cast<int>(sizeof(float));
  int most_shared = 0;
  cudaError_t error = most_shared_memory(&most_shared);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(flip, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared);
  }
  if (error != cudaSuccess) return error;
  const int warps = std::clamp(kFlipShared / token_bytes, 1, kThreads / 32);
  const int limit = std::min(search.flips, kFlipsPerBit * search.page.codes);
  flip<<<static_cast<unsigned>((tokens + warps - 1) / warps), 32 * warps, warps * token_bytes, stream>>>(
      search, tokens, limit, scratch);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
