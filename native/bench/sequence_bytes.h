// What a sequence takes before anything is compressed: of one token, and of a fork, at the geometry of a model of 32
// layers with 8 kv heads of 128.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "kvasir/kvasir.h"

namespace bench {

inline void print_sequence_bytes(const std::string& backend) {
  constexpr int kLayers = 32, kHeads = 8, kDim = 128;
  using kvasir::Cache;
  using kvasir::CacheConfig;
  using kvasir::CacheStats;
  const std::unique_ptr<CacheConfig, void (*)(CacheConfig*)> config(CacheConfig::create(kLayers), CacheConfig::destroy);
  config->set_heads(kvasir::kAllLayers, 4 * kHeads, kHeads, kDim);
  for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
    config->set_codec(kvasir::kAllLayers, side, "uniform", 2);
  }
  config->set_window(128);
  config->set_backend(backend.c_str());
  const std::unique_ptr<Cache, void (*)(Cache*)> cache(Cache::create(*config), Cache::destroy);
  const std::vector<float> row(kHeads * kDim, 1.0f);
  const auto append = [&](int64_t id) {
    for (int layer = 0; layer < kLayers; ++layer) cache->append(id, layer, row.data(), row.data(), 1);
  };
  const auto bytes = [&] {
    const std::unique_ptr<CacheStats, void (*)(CacheStats*)> stats(cache->stats(), CacheStats::destroy);
    return static_cast<long long>(stats->bytes());
  };
  const int64_t id = cache->new_sequence();
  append(id);
  const long long one = bytes();
  const int64_t fork = cache->fork(id);
  const long long forked = bytes() - one;
  append(fork);
  std::printf(
      "\nbytes at %d layers, %d kv heads, head dim %d: a sequence of one token %lld, its fork %lld, and %lld once it "
      "has a token of its own\n",
      kLayers, kHeads, kDim, one, forked, bytes() - one);
}

}  // namespace bench
