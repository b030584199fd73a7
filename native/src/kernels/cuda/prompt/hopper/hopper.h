// Prompt attention on Hopper (kernel.cuh), for one head dim and precisions kFast and kExact. A file instantiates each.
#pragma once

#include "kernels/cuda/prompt/instance.h"

namespace kvasir::cuda {

template <int D>
PromptKernel hopper_prompt(const PromptRequest& request);

}  // namespace kvasir::cuda
