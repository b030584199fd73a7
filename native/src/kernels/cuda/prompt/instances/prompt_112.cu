#include "kernels/cuda/prompt/kernel.cuh"

const kvasir::cuda::PromptInstance kvasir::cuda::prompt_112 = kPromptInstance<112>;
