#include "kernels/cuda/prompt_kernel.cuh"

const kvasir::cuda::PromptInstance kvasir::cuda::prompt_256 = PromptInstanceOf<256>::value;
