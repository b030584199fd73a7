// Prompt attention on Hopper (kernel.cuh), for head dims up to the number, and precisions kFast and kExact.
#pragma once

#include "kernels/cuda/prompt/instance.h"

namespace kvasir::cuda {

PromptKernel hopper_prompt_64(const PromptRequest& request);
PromptKernel hopper_prompt_128(const PromptRequest& request);

}  // namespace kvasir::cuda
