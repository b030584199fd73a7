#include "kernels/cuda/commvq/scores.cuh"

namespace kvasir::cuda {
namespace {

Kernel<CommVqParams> kernel_of(const KeyTableLayout& layout) {
  return layout.chunks == 1 ? score_kernel<1> : layout.chunks == 2 ? score_kernel<2> : score_kernel<4>;
}

}  // namespace

cudaError_t prepare_scores(const KeyTableLayout& layout, int shared_bytes) {
  if (layout.fast()) return prepare_plane_scores(layout, shared_bytes);
  return allow_shared_memory(kernel_of(layout), shared_bytes);
}

cudaError_t launch_scores(const CommVqParams& params, int blocks, int shared_bytes, cudaStream_t stream) {
  if (params.tables.fast()) return launch_plane_scores(params, blocks, shared_bytes, stream);
  return launch_kernel(kernel_of(params.tables), {dim3(blocks), 32 * kScoreWarps, shared_bytes, params.overlaps},
                       params, stream);
}

}  // namespace kvasir::cuda
