// One append to a layer of many sequences: all of it, or nothing.
#pragma once

#include <vector>

#include "cache/layer.h"

namespace kvasir {

// Appends each part of `appends` to the layer at its place in `layers`. Their sequences are locked. Throws what the
// engine does, kBudgetExceeded or kOutOfMemory; nothing has changed then.
void append_batch(const LayerPlan& plan, Memory& memory, Engine& engine, const std::vector<SequenceLayer*>& layers,
                  Appends& appends);

}  // namespace kvasir
