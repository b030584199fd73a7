#include "kernels/cuda/prompt/hopper/kernel.cuh"

namespace kvasir::cuda {
template PromptKernel hopper_prompt<96>(const PromptRequest& request);
}  // namespace kvasir::cuda
