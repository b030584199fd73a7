// States of four heads in memory, of warps or of blocks, which become one: [4][kFloats] each, for every head kParts
// times D sums, the greatest score and the sum of weights.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/softmax.cuh"

namespace kvasir::cuda {

constexpr int kMaxMergedStates = 64;

// A head of all states together, as a warp finds it: lane i knows what states i and i + 32 count for.
template <int D, int kParts, int kFloats>
class MergedHead {
 public:
  // `stride`: floats from a state to the next. count: kMaxMergedStates at most.
  __device__ __forceinline__ MergedHead(const float* states, int64_t stride, int count, int head, int lane)
      : states_(states + head * kFloats), stride_(stride), count_(count) {
    float highest[2], sums[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool there = lane + 32 * i < count;
      const float* const ends = states_ + (there ? lane + 32 * i : 0) * stride + kParts * D;
      highest[i] = there ? ends[0] : kNothing;
      sums[i] = there ? ends[1] : 0.0f;
    }
    reference_ = max_over_warp(fmaxf(highest[0], highest[1]));
    gains_[0] = weight_of(highest[0], reference_);
    gains_[1] = weight_of(highest[1], reference_);
    sum_ = sum_over_warp(fmaf(sums[0], gains_[0], sums[1] * gains_[1]));
  }

  // Sums i, D + i, ..., of other i in each lane.
  __device__ __forceinline__ void sums(int i, float (&totals)[kParts]) const {
#pragma unroll
    for (float& total : totals) total = 0.0f;
    add(i, 0, min(count_, 32), gains_[0], totals);
    add(i, 32, count_, gains_[1], totals);
  }
  __device__ __forceinline__ float reference() const { return reference_; }
  __device__ __forceinline__ float sum() const { return sum_; }

 private:
  __device__ __forceinline__ void add(int i, int first, int end, float gains, float (&totals)[kParts]) const {
    const float* at = states_ + first * stride_ + i;
#pragma unroll 16
    for (int state = first; state < end; ++state, at += stride_) {
      const float gain = __shfl_sync(0xffffffffu, gains, state);  // of lane state % 32
#pragma unroll
      for (int part = 0; part < kParts; ++part) totals[part] = fmaf(at[part * D], gain, totals[part]);
    }
  }

  const float* const states_;
  const int64_t stride_;
  const int count_;
  float gains_[2], reference_, sum_;
};

// use(i, merged, sums): for the four heads, sums i % D of head i / D, and of its other parts, of all states together.
template <int D, int kParts, int kFloats, class Use>
__device__ __forceinline__ void merge_heads(const float* states, int64_t stride, int count, const Use& use) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int i = threadIdx.x; i < 4 * D; i += blockDim.x) {
    const MergedHead<D, kParts, kFloats> merged(states, stride, count, i / D, lane);
    float sums[kParts];
    merged.sums(i % D, sums);
    use(i, merged, sums);
  }
}

}  // namespace kvasir::cuda
