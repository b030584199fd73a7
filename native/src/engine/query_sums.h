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
  double* sums;    // [kv_heads][head_dim]: since pages were last sealed
  float* known;    // [kv_heads][head_dim]: means from before
  int64_t* count;  // queries of a kv head in the sums: here, so that a graph on a device can count, too

  static int64_t channels(const AttentionLayer& layer) { return int64_t{layer.kv_heads} * layer.head_dim; }
  static int64_t bytes(const AttentionLayer& layer) {
    return bytes_before_count(layer) + static_cast<int64_t>(sizeof(int64_t));
  }
  static int64_t bytes_before_count(const AttentionLayer& layer) {
    return channels(layer) * static_cast<int64_t>(sizeof(double) + sizeof(float));
  }
  static QuerySums at(const AttentionLayer& layer, uint8_t* memory) {
    auto* sums = reinterpret_cast<double*>(memory);
    auto* known = reinterpret_cast<float*>(sums + channels(layer));
    return {sums, known, reinterpret_cast<int64_t*>(known + channels(layer))};
  }
};

}  // namespace kvasir
