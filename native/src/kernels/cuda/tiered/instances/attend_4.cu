#include "kernels/cuda/tiered/kernel.cuh"

kvasir::cuda::Kernel<kvasir::cuda::TieredParams> kvasir::cuda::tiered_kernel_4(const TieredShape& shape) {
  return tiered_kernel_of<4>(shape);
}
