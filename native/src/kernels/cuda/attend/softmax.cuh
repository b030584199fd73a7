// The online softmax of one warp over one segment, in registers.
//
// A lane (g = lane / 4, h = lane % 4) holds heads h, h + 4, ...: of the scores those of tokens g, g + 8, ..., of the
// output channels g, g + 8, .... Scores are base-2 logarithms.
#pragma once

#include "kernels/cuda/layout/fragments.h"
#include "kernels/cuda/primitives/softmax.cuh"

namespace kvasir::cuda {

template <int D, int kTiles>
struct SoftmaxState {
  static constexpr int kValueParts = D > kValueSpan ? D / kValueSpan : 1;
  float max[kTiles];                // of all scores so far; equal in the lanes of a head
  float sum[kTiles];                // this lane's share of the sum of weights
  float zero[kTiles][kValueParts];  // this lane's share of the sum of weight * lo: the same for every channel of a part
  float output[kTiles][D / 8];      // complete, but for `zero`

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      max[n] = -INFINITY;
      sum[n] = 0.0f;
#pragma unroll
      for (int p = 0; p < kValueParts; ++p) zero[n][p] = 0.0f;
#pragma unroll
      for (int i = 0; i < D / 8; ++i) output[n][i] = 0.0f;
    }
  }

  // Adds the lanes' shares. Afterwards the state is what merging works on.
  __device__ __forceinline__ void complete() {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      sum[n] = sum_over_rows(sum[n]);
#pragma unroll
      for (int p = 0; p < kValueParts; ++p) {
        const float total = sum_over_rows(zero[n][p]);
#pragma unroll
        for (int i = 0; i < D / 8 / kValueParts; ++i) output[n][p * (kValueSpan / 8) + i] += total;
      }
    }
  }
};

// How the step's sums join the state is left in `joining`. At least one score is finite.
template <int kCount, int D, int kTiles>
__device__ __forceinline__ void softmax_step(float (&scores)[kTiles][kCount], SoftmaxState<D, kTiles>& state,
                                             Joining (&joining)[kTiles]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) joining[n] = softmax_step(scores[n], state.max[n], state.sum[n]);
}

}  // namespace kvasir::cuda
