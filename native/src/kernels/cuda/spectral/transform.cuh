// Coefficients of a page's rows, as sealing makes them: rows over their norms, in whole numbers, times the inverse of
// the basis. Numbers are two digits of bytes, and tensor cores multiply them; sums are exact, so they are the host's.
//
// A row's place in shared memory is [d + kPad] floats. Its high digits stand there first, then its low ones, until they
// are replaced by the row's coefficients.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "codecs/row_numbers.h"
#include "codecs/spectral/formula.h"
#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/spectral/inverse_fragments.h"
#include "kernels/cuda/spectral/seal.h"

namespace kvasir::cuda {

// Floats between rows of coefficients, so that tokens of a channel lie in several banks, and ldmatrix meets none twice.
constexpr int kPad = 4;

// Both digits of two numbers that follow each other.
__device__ __forceinline__ void put_digits(uint8_t* row, int d, int channel, int first, int second) {
  const uint32_t both = __byte_perm(static_cast<uint32_t>(first), static_cast<uint32_t>(second), 0x5410);
  const uint32_t rounded = __vadd2(both, 0x00800080u);
  *reinterpret_cast<uint16_t*>(row + channel) = static_cast<uint16_t>(__byte_perm(rounded, 0, 0x4431));
  *reinterpret_cast<uint16_t*>(row + d + channel) = static_cast<uint16_t>(__byte_perm(both, 0, 0x4420));
}

// Norms, as they are stored, and rows over them: digits of numbers, or coefficients where there is no basis. A warp
// takes tokens that follow each other, eight lanes a row: each has two of its sixteen sums.
template <int kThreads, bool kDigits>
__device__ __forceinline__ void take_rows(const uint16_t* rows, int d, float* z, uint8_t* norms) {
  constexpr int kWarps = kThreads / 32, kTokens = kPageTokens / kWarps;
  constexpr int kMost = kWarps;  // pairs of channels that a lane has
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 8;
  const int first = kTokens * warp + static_cast<int>(threadIdx.x) % 32 / 8;
  const float scale = row_scale(d);
#pragma unroll 2
  for (int t = first; t < first + kTokens; t += 4) {
    const auto* const row = reinterpret_cast<const __half2*>(rows + t * d) + lane;
    float2 pairs[kMost];
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      pairs[k] = 16 * k < d ? __half22float2(__ldg(row + 8 * k)) : make_float2(0.0f, 0.0f);
    }
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      even += pairs[k].x * pairs[k].x;
      odd += pairs[k].y * pairs[k].y;
    }
#pragma unroll
    for (int mask = 4; mask > 0; mask /= 2) {
      even += __shfl_xor_sync(0xffffffffu, even, mask);
      odd += __shfl_xor_sync(0xffffffffu, odd, mask);
    }
    const uint8_t norm = spectral::norm_code((even + odd) / static_cast<float>(d));
    if (lane == 0) norms[t] = norm;
    const float inverse = spectral::inverse_power(norm - spectral::kNormBias);
    float* const to = z + t * (d + kPad);
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (16 * k >= d) continue;
      const int channel = 16 * k + 2 * lane;
      const float2 pair = make_float2(pairs[k].x * inverse, pairs[k].y * inverse);
      if constexpr (kDigits) {
        put_digits(reinterpret_cast<uint8_t*>(to), d, channel, row_number(pair.x, scale), row_number(pair.y, scale));
      } else {
        *reinterpret_cast<float2*>(to + channel) = pair;
      }
    }
  }
}

// Coefficients in place of the digits. Sixteen tokens are of one warp, or of two, which take eight coefficients in
// turn. kSteps: inverse_steps. What they have beyond the last channel is multiplied by 0.
template <int kThreads, int kSteps>
__device__ __forceinline__ void multiply(const SealBasis& basis, int kv_head, int d, float* z) {
  constexpr int kSharers = kThreads / 256;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, h = lane % 4, stride = d + kPad;
  float* const rows = z + warp / kSharers * 16 * stride;
  const uint32_t at = shared_address(rows + lane % 16 * stride) + lane / 16 * 16;
  const auto sync_sharers = [] {
    if constexpr (kSharers == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  };
  sync_sharers();  // digits are there
  uint4 high[kSteps], low[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    high[step] = load_matrices(at + 32 * step);
    low[step] = load_matrices(at + d + 32 * step);
  }
  sync_sharers();  // they were read
  const auto* const fragments = reinterpret_cast<const uint4*>(basis.inverse + kv_head * inverse_words(d)) + lane;
  const float* const units = basis.units + kv_head * d + 2 * h;
#pragma unroll 1
  for (int tile = warp % kSharers; tile < d / 8; tile += kSharers) {
    uint4 b[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) b[step] = __ldg(fragments + (tile * kSteps + step) * 32);
    int of_high[4] = {}, of_both[4] = {}, of_low[4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      mma_digits(of_high, high[step], b[step].x, b[step].y);
      mma_digits(of_both, high[step], b[step].z, b[step].w);
      mma_digits(of_both, low[step], b[step].x, b[step].y);
      mma_digits(of_low, low[step], b[step].z, b[step].w);
    }
    const float2 unit = __ldg(reinterpret_cast<const float2*>(units + 8 * tile));
    float sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // What leaves 32 bits on the way comes back.
      const uint32_t sum = (static_cast<uint32_t>(of_high[i]) << 16) + (static_cast<uint32_t>(of_both[i]) << 8) +
                           static_cast<uint32_t>(of_low[i]);
      sums[i] = static_cast<float>(static_cast<int>(sum)) * (i % 2 == 0 ? unit.x : unit.y);
    }
    float* const to = rows + g * stride + 8 * tile + 2 * h;
    *reinterpret_cast<float2*>(to) = make_float2(sums[0], sums[1]);
    *reinterpret_cast<float2*>(to + 8 * stride) = make_float2(sums[2], sums[3]);
  }
}

}  // namespace kvasir::cuda
