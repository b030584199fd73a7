// How large the queries are that a layer of a sequence sees, by kv head and channel: what codecs that weigh a channel's
// error by its use go by (Codec::wants_queries).
//
// Means are taken over the window: all queries since pages were last sealed, and all query heads of the kv head. Where
// there were none since then, the means of the window before stand; where there never were any, all are 1.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "cache/pool.h"

namespace kvasir {

class QueryMeans {
 public:
  static int64_t bytes_for(const AttentionLayer& layer) {
    return int64_t{layer.kv_heads} * layer.head_dim * static_cast<int64_t>(sizeof(double) + sizeof(float));
  }

  // Before anything else: gives it memory, bytes_for(layer) of it.
  void begin(const AttentionLayer& layer, Block block);
  explicit operator bool() const { return static_cast<bool>(block_); }
  int64_t bytes() const { return block_.bytes(); }

  // queries: [tokens][query_heads][head_dim]. Elements that are not finite do not count.
  void observe(const AttentionLayer& layer, const float* queries, int64_t tokens);

  // The means as a page sealed now is to see them: [kv_heads][head_dim].
  void read(const AttentionLayer& layer, float* out) const;
  // Pages were sealed: the window begins anew.
  void end_window(const AttentionLayer& layer);

  QueryMeans copy(Block block) const;

 private:
  double* sums() const { return reinterpret_cast<double*>(block_.data()); }
  float* known(const AttentionLayer& layer) const {
    return reinterpret_cast<float*>(sums() + static_cast<int64_t>(layer.kv_heads) * layer.head_dim);
  }

  Block block_;        // double sums[kv_heads][head_dim], float known[kv_heads][head_dim]
  int64_t count_ = 0;  // queries of a kv head in the sums
};

}  // namespace kvasir
