// How large the queries are that a layer of a sequence sees, by kv head and channel: what codecs that weigh a channel's
// error by its use go by (Codec::wants_queries). How the memory lies, for all engines; they do the sums
// (Engine::add_queries).
//
// Means are taken over all queries since pages were last sealed, and all query heads of the kv head. Where there were
// none since then, the means from before stand; where there never were any, all are 1.
#pragma once

#include <cstdint>

#include "attention/attention.h"

namespace kvasir {

struct QuerySums {
  double* sums;  // [kv_heads][head_dim]: since pages were last sealed
  float* known;  // [kv_heads][head_dim]: means from before

  static int64_t channels(const AttentionLayer& layer) { return int64_t{layer.kv_heads} * layer.head_dim; }
  static int64_t bytes(const AttentionLayer& layer) {
    return channels(layer) * static_cast<int64_t>(sizeof(double) + sizeof(float));
  }
  static QuerySums at(const AttentionLayer& layer, uint8_t* memory) {
    auto* sums = reinterpret_cast<double*>(memory);
    return {sums, reinterpret_cast<float*>(sums + channels(layer))};
  }
};

}  // namespace kvasir
