#include "kernels/cuda/prompt/kernel.cuh"

const kvasir::cuda::PromptInstance kvasir::cuda::prompt_256 = kPromptInstance<256>;
