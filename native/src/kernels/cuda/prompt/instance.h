// The kernels of prompt attention that are compiled, as a table: each instance file defines one row.
#pragma once

#include <cuda_runtime_api.h>

#include "base/host_device.h"
#include "kernels/cuda/prompt/prompt.h"

namespace kvasir::cuda {

// One of the prompts of a launch. Blocks find theirs by first_block.
struct LaunchedPrompt {
  int first_block;      // its own in x; those of a prompt are [splits][row tiles, the last ones first]
  int row_count;        // query rows of a kv head
  int splits;           // of the part's tokens
  bool first;           // the states hold nothing yet
  int newest;           // token of the part that the first query token is; negative before the part
  int masked_from;      // token of the part, with masks
  const void* queries;  // from here on as in PromptRequest
  void* outputs;
  float* states;
  float* log_sums;
  const PromptMask* masks;
  PromptRows rows;
};

// What a kernel is launched with: kernel parameters, which 4 KB hold on every device.
struct PromptLaunch {
  int kv_heads, group, head_dim;  // as in PromptRequest
  ElementType type;
  int reach;  // tokens that a row sees, up to its newest
  float scale, soft_cap;
  const float* sink_logits;
  int count;
  LaunchedPrompt prompts[kMostPrompts];

  // The prompt of a block in x.
  KVASIR_HOST_DEVICE int prompt_of(int block) const {
    int at = 0;
    for (int step = kMostPrompts / 2; step > 0; step /= 2) {
      if (at + step < count && prompts[at + step].first_block <= block) at += step;
    }
    return at;
  }
};
static_assert(sizeof(PromptLaunch) <= 4096);

constexpr int kFar = 1 << 30;  // tokens: further than any part reaches

// A kernel, and what its launch needs to know.
struct PromptKernel {
  void (*kernel)(PromptLaunch launch);
  int rows;  // of a block
  int threads;
  int shared_bytes;
};

// All head dims up to one, from the one before it on.
struct PromptInstance {
  int rows;  // of a block, mostly
  PromptKernel (*kernel_for)(const PromptRequest& request);
};

extern const PromptInstance prompt_64, prompt_80, prompt_96, prompt_112, prompt_128, prompt_256;

// A state in memory: greatest score in powers of two, sum of weights, then head_dim outputs that wait for their
// division. [splits][kv_heads][rows]
constexpr int kPromptStateHead = 2;
constexpr int kWeightExponent = 14;  // of the greatest weight: small ones keep their bits

}  // namespace kvasir::cuda
