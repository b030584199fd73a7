#include "kernels/cuda/prompt/hopper/kernel.cuh"

namespace kvasir::cuda {
template PromptKernel hopper_prompt<64>(const PromptRequest& request);
}  // namespace kvasir::cuda
