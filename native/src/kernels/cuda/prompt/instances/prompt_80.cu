#include "kernels/cuda/prompt/kernel.cuh"

const kvasir::cuda::PromptInstance kvasir::cuda::prompt_80 = kPromptInstance<80>;
