#include <cmath>

#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/rows/merge_results.h"

namespace kvasir::cuda {
namespace {

constexpr int kWarps = 4;

// A warp takes a row.
__global__ void __launch_bounds__(32 * kWarps) merge_results(const __grid_constant__ ResultMerge merge) {
  const int64_t row = blockIdx.x * static_cast<int64_t>(kWarps) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= merge.rows) return;
  const float ours = merge.sums[row], theirs = merge.other_sums[row], highest = fmaxf(ours, theirs);
  const float our_share = highest == -INFINITY ? 0.0f : expf(ours - highest);
  const float their_share = highest == -INFINITY ? 0.0f : expf(theirs - highest);
  const float sum = our_share + their_share, inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
  for (int64_t i = row * merge.width + lane; i < (row + 1) * merge.width; i += 32) {
    const float one = load_number(merge.outputs, merge.type, i), other = load_number(merge.others, merge.type, i);
    store_number(merge.outputs, merge.type, i, fmaf(one, our_share, other * their_share) * inverse);
  }
  if (lane == 0 && merge.log_sums != nullptr) merge.log_sums[row] = sum > 0.0f ? highest + logf(sum) : -INFINITY;
}

}  // namespace

cudaError_t launch_merge_results(const ResultMerge& merge, cudaStream_t stream) {
  if (merge.rows < 1 || merge.width < 1) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>((merge.rows + kWarps - 1) / kWarps);
  merge_results<<<blocks, 32 * kWarps, 0, stream>>>(merge);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
