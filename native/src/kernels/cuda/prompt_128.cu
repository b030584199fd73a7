#include "kernels/cuda/prompt_kernel.cuh"

const kvasir::cuda::PromptInstance kvasir::cuda::prompt_128 = PromptInstanceOf<128>::value;
