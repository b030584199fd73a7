#include "kernels/cuda/tiered/kernel.cuh"

namespace kvasir::cuda {

cudaError_t prepare_tiered_4(const TieredShape& shape, int shared_bytes, bool* overlaps) {
  return with_tiered_instance<4>(shape, [&](auto instance) { return instance.prepare(shared_bytes, overlaps); });
}

cudaError_t launch_tiered_4(const TieredPlan& plan, const TieredParams& params, cudaStream_t stream) {
  return with_tiered_instance<4>(plan.shape, [&](auto instance) { return instance.launch(plan, params, stream); });
}

}  // namespace kvasir::cuda
