// States of attention, which become one: [4][state_floats] each, for four heads sums of coefficients, outputs of rows,
// the greatest score and the sum of weights.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/softmax.cuh"
#include "kernels/cuda/spectral/params.h"

namespace kvasir::cuda {

// A head of all states together, as a warp finds it: lane i knows what states i and i + 32 count for.
template <int D>
class MergedHead {
 public:
  // `stride`: floats from a state to the next.
  __device__ __forceinline__ MergedHead(const float* states, int64_t stride, int count, int head, int lane)
      : states_(states + head * state_floats(D)), stride_(stride), count_(count) {
    float highest[2], sums[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool there = lane + 32 * i < count;
      const float* const ends = states_ + (there ? lane + 32 * i : 0) * stride + 2 * D;
      highest[i] = there ? ends[0] : kNothing;
      sums[i] = there ? ends[1] : 0.0f;
    }
    reference_ = max_over_warp(fmaxf(highest[0], highest[1]));
    gains_[0] = weight_of(highest[0], reference_);
    gains_[1] = weight_of(highest[1], reference_);
    sum_ = sum_over_warp(fmaf(sums[0], gains_[0], sums[1] * gains_[1]));
  }

  // Elements i and D + i, of other i in each lane: a sum of coefficients, and an output of rows.
  __device__ __forceinline__ float2 elements(int i) const {
    float2 total = {};
    add(i, 0, min(count_, 32), gains_[0], total);
    add(i, 32, count_, gains_[1], total);
    return total;
  }
  __device__ __forceinline__ float reference() const { return reference_; }
  __device__ __forceinline__ float sum() const { return sum_; }

 private:
  __device__ __forceinline__ void add(int i, int first, int end, float gains, float2& total) const {
    const float* at = states_ + first * stride_ + i;
#pragma unroll 16
    for (int state = first; state < end; ++state, at += stride_) {
      const float gain = __shfl_sync(0xffffffffu, gains, state);  // of lane state % 32
      total.x = fmaf(at[0], gain, total.x);
      total.y = fmaf(at[D], gain, total.y);
    }
  }

  const float* const states_;
  const int64_t stride_;
  const int count_;
  float gains_[2], reference_, sum_;
};

}  // namespace kvasir::cuda
