// The kernels of prompt attention that are compiled, as a table: each instance file defines one row.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/prompt/prompt.h"

namespace kvasir::cuda {

// A kernel, and what its launch needs to know.
struct PromptKernel {
  void (*kernel)(PromptRequest request, PromptRows part, int rows, bool first);
  int rows;  // of a block
  int threads;
  int shared_bytes;
};

// All head dims up to one.
struct PromptInstance {
  int rows;  // of a block, mostly
  PromptKernel (*kernel_for)(const PromptRequest& request);
};

extern const PromptInstance prompt_64, prompt_128, prompt_256;

// A state in memory: greatest score in powers of two, sum of weights, then head_dim outputs that wait for their
// division. [splits][kv_heads][rows]
constexpr int kPromptStateHead = 2;
constexpr int kWeightExponent = 14;  // of the greatest weight: small ones keep their bits

}  // namespace kvasir::cuda
