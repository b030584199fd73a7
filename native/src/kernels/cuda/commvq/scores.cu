#include "kernels/cuda/commvq/scores.cuh"

namespace kvasir::cuda {
namespace {

// The instance for a layout: verb(instance).
template <class Verb>
cudaError_t with_instance(const KeyTableLayout& layout, Verb verb) {
  return layout.chunks == 1   ? verb(ScoreInstance<1>())
         : layout.chunks == 2 ? verb(ScoreInstance<2>())
                              : verb(ScoreInstance<4>());
}

}  // namespace

cudaError_t prepare_scores(const KeyTableLayout& layout, int shared_bytes) {
  if (layout.fast()) return prepare_plane_scores(layout, shared_bytes);
  return with_instance(layout, [&](auto instance) { return instance.prepare(shared_bytes); });
}

cudaError_t launch_scores(const CommVqParams& params, int blocks, int shared_bytes, cudaStream_t stream) {
  if (params.tables.fast()) return launch_plane_scores(params, blocks, shared_bytes, stream);
  return with_instance(params.tables,
                       [&](auto instance) { return instance.launch(params, blocks, shared_bytes, stream); });
}

}  // namespace kvasir::cuda
