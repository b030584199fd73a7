// Memory of the device that callers hand over: checked before a kernel sees it, because an address that the device
// cannot reach would end all work on it.
#pragma once

#include "engine/cuda/device_layer.h"
#include "engine/engine.h"

namespace kvasir::cuda {

constexpr int kDevice = 0;

// Throw kInvalidArgument; `what` are at the address.
void check_reachable(const char* what, const void* address);
// Kernels read queries while others of the same launch write outputs.
void require_apart(const DeviceQueries& device, size_t query_bytes, size_t output_bytes);

// Rows to append that are on the device already. refused: see InputRows.
InputRows input_of(const DeviceLayer& layer, const TokenRows& rows, uint32_t* refused);

}  // namespace kvasir::cuda
