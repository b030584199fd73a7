#include "kernels/cuda/prompt/hopper/kernel.cuh"

namespace kvasir::cuda {
template PromptKernel hopper_prompt<128>(const PromptRequest& request);
}  // namespace kvasir::cuda
