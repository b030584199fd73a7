#include "kernels/cuda/prompt/hopper/hopper.h"
#include "kernels/cuda/prompt/hopper/kernel.cuh"

namespace kvasir::cuda {
PromptKernel hopper_prompt_64(const PromptRequest& request) { return hopper_kernel_for<64>(request); }
}  // namespace kvasir::cuda
