#include "kernels/cuda/prompt/hopper/kernel.cuh"

namespace kvasir::cuda {
template PromptKernel hopper_prompt<32>(const PromptRequest& request);
}  // namespace kvasir::cuda
