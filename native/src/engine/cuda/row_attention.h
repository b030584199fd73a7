// Attention on unpacked rows: for pages that no fused kernel reads, and for chunks of query tokens.
#pragma once

#include "engine/cuda/device_layer.h"
#include "kernels/cuda/prompt/prompt.h"

namespace kvasir::cuda {

// One sequence. `request` has everything but its precision and states; those this takes from the arena like the rows it
// unpacks, some thousand at a time. Tokens before `from` are left out; if there are any, those from it on must be in no
// page.
void attend_to_rows(const DeviceLayer& layer, const SequenceView& view, const PromptRequest& request, int64_t from);

}  // namespace kvasir::cuda
