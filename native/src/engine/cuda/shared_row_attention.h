// Attention where keys and values share a row: on unpacked rows, whatever the pages are.
#pragma once

#include "engine/cuda/device_layer.h"
#include "kernels/cuda/prompt/prompt.h"

namespace kvasir::cuda {

// One sequence. `request` has everything but its states; those this takes from the arena like the rows it unpacks, some
// thousand at a time.
void attend_to_shared_rows(const DeviceLayer& layer, const SequenceView& view, const PromptRequest& request);

}  // namespace kvasir::cuda
