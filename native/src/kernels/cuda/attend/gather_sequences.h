// Descriptions of sequences, wherever they lie, side by side: for kernels that take an array of them in a graph, which
// follows what they say when it runs.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attend/types.h"

namespace kvasir::cuda {

// sequences: [count] addresses, in device memory themselves. out: [count].
cudaError_t launch_gather_sequences(const DeviceSequence* const* sequences, int count, DeviceSequence* out,
                                    cudaStream_t stream);

}  // namespace kvasir::cuda
