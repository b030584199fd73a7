// The kernels of prompt attention that are compiled, as a table: each instance file defines one row.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/prompt/prompt.h"

namespace kvasir::cuda {

// How a launch divides its work.
struct PromptDivision {
  int rows;    // query rows of a kv head
  int splits;  // of a part's tokens
};

// All head dims up to one.
struct PromptInstance {
  int rows;  // of a block, mostly
  cudaError_t (*launch)(const PromptRequest& request, const PromptRows& rows, const PromptDivision& division,
                        bool first, cudaStream_t stream);
};

extern const PromptInstance prompt_64, prompt_128, prompt_256;

// A state in memory: greatest score in powers of two, sum of weights, then head_dim outputs that wait for their
// division. [splits][kv_heads][rows]
constexpr int kPromptStateHead = 2;

}  // namespace kvasir::cuda
