// Queries of layers that scale their keys.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kvasir/types.h"

namespace kvasir::cuda {

// queries[row][c] *= scaling[kv head][c], for layers that scale their keys. `from` and `to` may be the same.
cudaError_t launch_scale_queries(const void* from, void* to, ElementType type, int64_t tokens, int kv_heads, int group,
                                 int head_dim, const float* scaling, cudaStream_t stream);

}  // namespace kvasir::cuda
