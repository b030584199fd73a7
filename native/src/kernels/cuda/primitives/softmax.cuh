// The online softmax. Scores are base-2 logarithms; weights, and sums of them, are relative to a reference, which is
// the greatest score so far.
#pragma once

#include <cmath>

#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/row_ends.h"

namespace kvasir::cuda {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// How far above the reference scores may come before it is moved, in kernels that let it lag: weights are up to
// 2^kReferenceSlack then, which sums of float32 do not notice.
constexpr float kReferenceSlack = 8.0f;

// Score of a token that must not be seen, and reference of no tokens. Finite, so that differences are.
constexpr float kHidden = -1e30f;
// Reference of no states, below those of states of hidden tokens alone. Finite as well.
constexpr float kNothing = -1e38f;

__device__ __forceinline__ float weight_of(float score, float reference) { return exp2_approx(score - reference); }

// Moves the reference, and returns what sums relative to the old one are multiplied by.
__device__ __forceinline__ float move_reference(float& reference, float to) {
  const float keep = weight_of(reference, to);
  reference = to;
  return keep;
}

// For kernels whose reference of no tokens is -INFINITY: what to subtract instead, so that weights are 0.
__device__ __forceinline__ float finite_reference(float reference) { return reference == -INFINITY ? 0.0f : reference; }

// How sums with a reference of their own join those so far: sums so far * keep + sums * gain.
struct Joining {
  float keep, gain;
};

// Turns the scores of a step into weights relative to the step's own maximum, so that steps far below the reference
// lose nothing when their weights are quantised, and adds them up. Lanes that share lane % 4 have scores of the same
// head, and `sum` is a lane's share. The reference or a score is finite.
template <int kCount>
__device__ __forceinline__ Joining softmax_step(float (&scores)[kCount], float& reference, float& sum) {
  float highest = scores[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) highest = fmaxf(highest, scores[i]);
  highest = max_over_rows(highest);
  const float next = fmaxf(reference, highest);
  const float keep = move_reference(reference, next);
  const Joining joining = {keep, weight_of(highest, next)};
  float added = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    scores[i] = weight_of(scores[i], highest);
    added += scores[i];
  }
  sum = fmaf(sum, joining.keep, added * joining.gain);
  return joining;
}

// cap * tanh(score / cap), cap positive: off by about 2^-22 * cap.
__device__ __forceinline__ float capped(float score, float cap) {
  const float power = exp2_approx(score * (2.0f * kLog2E) * __fdividef(1.0f, cap));
  return fmaf(-2.0f * cap, __fdividef(1.0f, 1.0f + power), cap);
}

// A row's outputs times gain / sum are attention.
struct RowEnd {
  float gain, sum;
};

// `sum` of weights is relative to `reference`. Whoever `writes` leaves the logarithm; one lane of a row should.
__device__ __forceinline__ RowEnd end_row(const RowEnds& ends, int query_heads, int64_t row, float reference, float sum,
                                          bool writes) {
  RowEnd end = {1.0f, sum};
  if (ends.sink_logits != nullptr) {
    const float sink = ends.sink_logits[row % query_heads] * kLog2E, to = fmaxf(reference, sink);
    end.gain = exp2f(reference - to);
    end.sum = fmaf(sum, end.gain, exp2f(sink - to));
    reference = to;
  }
  if (ends.log_sums != nullptr && writes) {
    ends.log_sums[row] = end.sum > 0.0f ? (reference + log2f(end.sum)) * kLn2 : -INFINITY;
  }
  return end;
}

// States in memory: [heads][d + 2], the sums of d channels, the reference, the sum of weights. Element i of what
// `count` states, `stride` floats apart, are together.
__device__ __forceinline__ float merged_element(const float* states, int64_t stride, int count, int d, int i) {
  const int h = i / (d + 2);
  float highest = kHidden, total = 0.0f;
#pragma unroll 8
  for (int s = 0; s < count; ++s) highest = fmaxf(highest, states[s * stride + h * (d + 2) + d]);
  if (i % (d + 2) == d) return highest;
#pragma unroll 8
  for (int s = 0; s < count; ++s) {
    const float* const state = states + s * stride;
    total = fmaf(state[i], weight_of(state[h * (d + 2) + d], highest), total);
  }
  return total;
}

}  // namespace kvasir::cuda
