// An engine that holds nothing and computes nothing: a cache over it takes and gives back what it would elsewhere, so
// that its books say what tokens would cost (cache/estimate.cc).
#pragma once

#include <memory>

#include "engine/engine.h"

namespace kvasir {

std::unique_ptr<Engine> make_blank_engine();

// Appends of so many tokens, one for each count, without rows.
std::unique_ptr<Appends> make_blank_appends(const LayerPlan& plan, const std::vector<int64_t>& counts);

}  // namespace kvasir
