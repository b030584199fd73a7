#include "kernels/cuda/prompt/kernel.cuh"

const kvasir::cuda::PromptInstance kvasir::cuda::prompt_128 = kPromptInstance<128>;
