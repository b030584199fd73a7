// Attention on unpacked rows: for pages that no fused kernel reads, and for chunks of query tokens.
#pragma once

#include <vector>

#include "engine/cuda/device_layer.h"
#include "kernels/cuda/prompt/prompt.h"

namespace kvasir::cuda {

// One sequence. `request` has everything but its precision, states and tokens of parts. Tokens before `from` are left
// out; if there are any, those from it on must be in no page.
struct RowPrompt {
  const SequenceView* view;
  PromptRequest request;
  int64_t from;
};

// Takes from the arena states, and memory for the rows it unpacks, some thousand at a time. As many prompts as these
// hold attend together; what each gets does not depend on the others. Requests differ as those of one launch may
// (prompt.h).
void attend_to_rows(const DeviceLayer& layer, const std::vector<RowPrompt>& prompts);

}  // namespace kvasir::cuda
