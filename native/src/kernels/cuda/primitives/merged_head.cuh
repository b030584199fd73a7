// States of four heads in memory, of warps or of blocks, which become one: [4][kFloats] each, for every head kParts
// times D sums, the greatest score and the sum of weights.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/softmax.cuh"

namespace kvasir::cuda {

constexpr int kMaxMergedStates = 64;

// A head of all states together, as a warp finds it: sums i, D + i, ..., of other i in each lane.
template <int D, int kParts, int kFloats>
class MergedHead {
 public:
  float sums[kParts] = {};
  float reference, sum;  // the greatest score, the sum of weights

  // `stride`: floats from a state to the next. count: kMaxMergedStates at most.
  __device__ __forceinline__ MergedHead(const float* states, int64_t stride, int count, int head, int i, int lane) {
    states += head * kFloats;
    // Asked for before it is known what they count for.
    float first[kAhead][kParts];
#pragma unroll
    for (int state = 0; state < kAhead; ++state) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        first[state][part] = state < count ? states[state * stride + part * D + i] : 0.0f;
      }
    }
    // Lane j knows what states j and j + 32 count for.
    float highest[2], weights[2], gains[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const bool there = lane + 32 * k < count;
      const float* const ends = states + (there ? lane + 32 * k : 0) * stride + kParts * D;
      highest[k] = there ? ends[0] : kNothing;
      weights[k] = there ? ends[1] : 0.0f;
    }
    reference = max_over_warp(fmaxf(highest[0], highest[1]));
    gains[0] = weight_of(highest[0], reference);
    gains[1] = weight_of(highest[1], reference);
    sum = sum_over_warp(fmaf(weights[0], gains[0], weights[1] * gains[1]));
#pragma unroll
    for (int state = 0; state < kAhead; ++state) add(first[state], __shfl_sync(0xffffffffu, gains[0], state));
#pragma unroll 4
    for (int state = kAhead; state < count; ++state) {
      float numbers[kParts];
#pragma unroll
      for (int part = 0; part < kParts; ++part) numbers[part] = states[state * stride + part * D + i];
      add(numbers, __shfl_sync(0xffffffffu, state < 32 ? gains[0] : gains[1], state));  // of lane state % 32
    }
  }

 private:
  static constexpr int kAhead = 16;

  __device__ __forceinline__ void add(const float (&numbers)[kParts], float gain) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) sums[part] = fmaf(numbers[part], gain, sums[part]);
  }
};

// use(i, merged): for the four heads, sums i % D of head i / D, and of its other parts, of all states together.
template <int D, int kParts, int kFloats, class Use>
__device__ __forceinline__ void merge_heads(const float* states, int64_t stride, int count, const Use& use) {
#pragma unroll 1
  for (int i = threadIdx.x; i < 4 * D; i += blockDim.x) {
    use(i, MergedHead<D, kParts, kFloats>(states, stride, count, i / D, i % D, threadIdx.x % 32));
  }
}

}  // namespace kvasir::cuda
