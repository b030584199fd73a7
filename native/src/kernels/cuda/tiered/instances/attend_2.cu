#include "kernels/cuda/tiered/kernel.cuh"

namespace kvasir::cuda {

cudaError_t prepare_tiered_2(const TieredShape& shape, int shared_bytes, bool* overlaps) {
  return with_tiered_instance<2>(shape, [&](auto instance) { return instance.prepare(shared_bytes, overlaps); });
}

cudaError_t launch_tiered_2(const TieredPlan& plan, const TieredParams& params, cudaStream_t stream) {
  return with_tiered_instance<2>(plan.shape, [&](auto instance) { return instance.launch(plan, params, stream); });
}

}  // namespace kvasir::cuda
