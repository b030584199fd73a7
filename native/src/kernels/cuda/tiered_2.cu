#include "kernels/cuda/tiered_kernel.cuh"

namespace kvasir::cuda {

cudaError_t prepare_tiered_2(int head_dim, int key_group, int shared_bytes) {
  return with_tiered_instance<2>(head_dim, key_group, [&](auto instance) { return instance.prepare(shared_bytes); });
}

cudaError_t launch_tiered_2(int head_dim, const TieredParams& params, int shared_bytes, cudaStream_t stream) {
  return with_tiered_instance<2>(head_dim, params.key_group,
                                 [&](auto instance) { return instance.launch(params, shared_bytes, stream); });
}

}  // namespace kvasir::cuda
