#include "kernels/cuda/prompt/kernel.cuh"

const kvasir::cuda::PromptInstance kvasir::cuda::prompt_64 = kPromptInstance<64>;
