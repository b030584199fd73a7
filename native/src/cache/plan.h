// From a configuration to the plans of its layers.
#pragma once

#include <vector>

#include "cache/config.h"
#include "engine/layer_plan.h"

namespace kvasir {

// `backend`: of this machine, by number.
// Throws kInvalidArgument where the configuration makes no sense.
std::vector<LayerPlan> plan_layers(const CacheConfig::Impl& config, int backend);

}  // namespace kvasir
