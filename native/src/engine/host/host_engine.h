// The engine of this machine: plain memory, the kernels of one backend of kernels.h, the library's threads.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace kvasir {

// Rows in memory of this machine. Throws kNotFinite.
void check_rows(const LayerPlan& plan, const TokenRows& rows);
void check_side(const LayerPlan& plan, Side side, const void* elements, ElementType type, int64_t tokens);
// Keys as they are stored under key scaling, checked too.
std::vector<float> scaled_keys(const LayerPlan& plan, const TokenRows& rows);

// `backend`: number in the ladder of kernels.h.
std::unique_ptr<Engine> make_host_engine(int backend);

}  // namespace kvasir
