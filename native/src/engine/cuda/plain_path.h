// Attention on decoded rows: for pages that no fused kernel reads, and for chunks of query tokens.
#pragma once

#include "engine/cuda/device_layer.h"
#include "engine/cuda/layer_state.h"
#include "kernels/cuda/plain_attention.h"

namespace kvasir::cuda {

// One sequence. `request` has everything but states, which this takes from the arena like the rows it decodes.
void attend_plainly(const DeviceLayer& layer, const SequenceView& view, PlainRequest request, DeviceArena& arena,
                    cudaStream_t stream);

}  // namespace kvasir::cuda
