// Breaks the device for this process: after it every CUDA call of the process reports the same error, for ever.
#pragma once

#include <cuda_runtime_api.h>

namespace kvasir_faults {

// Returns what the device then says; cudaSuccess where it would not break.
cudaError_t break_device();

}  // namespace kvasir_faults
