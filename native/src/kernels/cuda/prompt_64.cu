#include "kernels/cuda/prompt_kernel.cuh"

const kvasir::cuda::PromptInstance kvasir::cuda::prompt_64 = PromptInstanceOf<64>::value;
