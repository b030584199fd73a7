#include "kernels/cuda/commvq_scores.cuh"

namespace kvasir::cuda {
namespace {

// The instance for a layout: verb(instance).
template <class Verb>
cudaError_t with_instance(const KeyTableLayout& layout, Verb verb) {
  if (layout.element_bytes == 1) {
    return layout.chunks == 1 ? verb(ScoreInstance<1, 1>()) : verb(ScoreInstance<1, 2>());
  }
  return layout.chunks == 1   ? verb(ScoreInstance<2, 1>())
         : layout.chunks == 2 ? verb(ScoreInstance<2, 2>())
                              : verb(ScoreInstance<2, 4>());
}

}  // namespace

cudaError_t prepare_scores(const KeyTableLayout& layout, int shared_bytes) {
  return with_instance(layout, [&](auto instance) { return instance.prepare(shared_bytes); });
}

cudaError_t launch_scores(const CommVqParams& params, int blocks, int shared_bytes, cudaStream_t stream) {
  return with_instance(params.tables,
                       [&](auto instance) { return instance.launch(params, blocks, shared_bytes, stream); });
}

}  // namespace kvasir::cuda
