#include "kernels/cuda/prompt/hopper/hopper.h"
#include "kernels/cuda/prompt/hopper/kernel.cuh"

namespace kvasir::cuda {
PromptKernel hopper_prompt_128(const PromptRequest& request) { return hopper_kernel_for<128>(request); }
}  // namespace kvasir::cuda
