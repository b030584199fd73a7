// Spectral pages as float32 rows: prompts, inspection, combinations without a fused kernel. Arithmetic and its order
// are those of the host's decoder: rows are equal to its bit for bit.
#pragma once

#include <cuda_runtime_api.h>

#include "codecs/page_format.h"
#include "kernels/cuda/rows/unpack.h"

namespace kvasir::cuda {

// vectors: [kv_heads][head_dim][head_dim] in device memory, or null for pages without a basis.
cudaError_t launch_spectral_rows(const PageFormat& format, const float* vectors, const RowUnpacking& unpacking,
                                 cudaStream_t stream);

}  // namespace kvasir::cuda
