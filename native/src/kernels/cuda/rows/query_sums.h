// How large queries are, by kv head and channel, for codecs that weigh a channel's error by its use: what
// engine/host/query_means.h does on this machine, with the same arithmetic in the same order.
//
// A sequence has in device memory, one behind the other, double sums[kv_heads][head_dim], float
// known[kv_heads][head_dim] and int64_t count, the queries of a kv head in the sums; `sums` is where they begin.
// Nothing of it is known to this machine, so that all of it can be captured in a graph. Channels are an even number.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kvasir/types.h"

namespace kvasir::cuda {

struct QueryShape {
  int kv_heads;
  int group;  // query heads of a kv head
  int head_dim;
};

// To begin with the sums are 0 and what is known is 1.
cudaError_t launch_clear_queries(const QueryShape& shape, double* sums, cudaStream_t stream);

// sums[s] += the magnitudes of the queries of sequence s, group by group in float, token by token in double. Elements
// that are not finite do not count. queries: [count][tokens][kv_heads * group][head_dim]. sums: on the host, [count]
// pointers to device memory, no two of them equal.
cudaError_t launch_add_queries(const QueryShape& shape, const void* queries, ElementType type, int64_t tokens,
                               int count, double* const* sums, cudaStream_t stream);

// means = sums / count; what is known where that is 0. sums: null where there never were any queries, and all means are
// 1. scaling: [kv_heads][head_dim], multiplies the means (the key scaling of the cache), or null. means:
// [kv_heads][head_dim], finite.
cudaError_t launch_read_query_means(const QueryShape& shape, const double* sums, const float* scaling, float* means,
                                    cudaStream_t stream);

// Pages were sealed: where there were queries, known = sums / count, and sums and count become 0.
cudaError_t launch_settle_queries(const QueryShape& shape, double* sums, cudaStream_t stream);

}  // namespace kvasir::cuda
