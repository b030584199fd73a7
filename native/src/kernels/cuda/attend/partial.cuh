// Partial softmax states in shared and global memory.
#pragma once

#include "kernels/cuda/attend/softmax.cuh"
#include "kernels/cuda/attend/work.cuh"

namespace kvasir::cuda {

// Floats of one head: the output, then maximum and sum. The gap keeps the heads of a warp in different banks.
template <int D>
constexpr int kPartialHead = D + 8;
template <int D, int kTiles>
constexpr int kPartialFloats = 4 * kTiles* kPartialHead<D>;

// Queries and outputs of a segment.
struct SegmentHeads {
  int64_t first;  // row of [sequences * query heads]
  int count;      // 1..4 * kTiles

  template <int kTiles>
  __device__ static SegmentHeads of(const AttendParams& params, int segment) {
    const int kv_row = params.row_blocks == 1 ? segment : segment / params.row_blocks;  // sequence * kv heads + kv head
    const int first = (segment - kv_row * params.row_blocks) * 4 * kTiles;
    return {static_cast<int64_t>(kv_row) * params.group + first, min(params.group - first, 4 * kTiles)};
  }
};

template <int D, int kTiles>
__device__ __forceinline__ void write_partial(const SoftmaxState<D, kTiles>& state, int lane, float* partial) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float* head = partial + (4 * n + lane % 4) * kPartialHead<D>;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) head[8 * i + lane / 4] = state.output[n][i];
    if (lane < 4) {
      head[D] = state.max[n];
      head[D + 1] = state.sum[n];
    }
  }
}

}  // namespace kvasir::cuda
