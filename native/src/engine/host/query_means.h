// Query sums (engine/query_sums.h) in memory of this machine.
#pragma once

#include "engine/query_sums.h"

namespace kvasir {

void clear_queries(const AttentionLayer& layer, const QuerySums& sums);
// queries: [tokens][query_heads][head_dim]. Elements that are not finite do not count.
void add_queries(const AttentionLayer& layer, const float* queries, int64_t tokens, const QuerySums& sums);
// out: [kv_heads][head_dim].
void read_query_means(const AttentionLayer& layer, const QuerySums& sums, float* out);
void settle_queries(const AttentionLayer& layer, const QuerySums& sums);

}  // namespace kvasir
