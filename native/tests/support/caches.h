// Caches for tests: a description, the cache built from it, and comparisons with the double-precision reference.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvasir/kvasir.h"
#include "reference/attention.h"
#include "reference/page.h"
#include "support/effort.h"

namespace support {

struct SideChoice {
  std::string codec = "f16";
  int bits = 16;
  reference::Options options;
};

struct LayerChoice {
  int query_heads = 4;
  int kv_heads = 2;
  int head_dim = 32;
  SideChoice keys, values;
  int64_t sliding_window = 0;
  int64_t budget = 0;
  float softmax_scale = 0.0f;
  std::vector<float> key_scaling;

  int row_size() const { return kv_heads * head_dim; }
  int query_size() const { return query_heads * head_dim; }
  reference::AttentionShape shape() const {
    return {query_heads, kv_heads, head_dim, sliding_window, softmax_scale, 0.0, {}};
  }
};

struct CacheChoice {
  std::vector<LayerChoice> layers;
  int window = 0;
  int sinks = 0;
  int64_t budget = 0;
  std::string backend = "auto";
  kvasir::Precision precision = kvasir::Precision::kExact;
  kvasir::ShrinkPolicy shrink_policy = kvasir::ShrinkPolicy::kOldest;
};

struct CacheDeleter {
  void operator()(kvasir::Cache* cache) const { kvasir::Cache::destroy(cache); }
  void operator()(kvasir::CacheConfig* config) const { kvasir::CacheConfig::destroy(config); }
  void operator()(kvasir::CacheStats* stats) const { kvasir::CacheStats::destroy(stats); }
};
using CachePointer = std::unique_ptr<kvasir::Cache, CacheDeleter>;
using ConfigPointer = std::unique_ptr<kvasir::CacheConfig, CacheDeleter>;
using StatsPointer = std::unique_ptr<kvasir::CacheStats, CacheDeleter>;

inline StatsPointer stats_of(kvasir::Cache& cache) { return StatsPointer(cache.stats()); }

inline CachePointer make_cache(const CacheChoice& choice) {
  ConfigPointer config(kvasir::CacheConfig::create(static_cast<int>(choice.layers.size())));
  for (int i = 0; i < static_cast<int>(choice.layers.size()); ++i) {
    const LayerChoice& layer = choice.layers[i];
    config->set_heads(i, layer.query_heads, layer.kv_heads, layer.head_dim);
    for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
      const SideChoice& wanted = side == kvasir::Side::kKeys ? layer.keys : layer.values;
      config->set_codec(i, side, wanted.codec.c_str(), wanted.bits);
      for (const auto& [name, value] : wanted.options) config->set_option(i, side, name.c_str(), value);
    }
    if (layer.sliding_window != 0) config->set_sliding_window(i, layer.sliding_window);
    if (layer.softmax_scale != 0.0f) config->set_softmax_scale(i, layer.softmax_scale);
    config->set_layer_budget(i, layer.budget);
    config->set_key_scaling(i, layer.key_scaling.data(), static_cast<int64_t>(layer.key_scaling.size()));
  }
  config->set_window(choice.window);
  config->set_sinks(choice.sinks);
  config->set_budget(choice.budget);
  config->set_backend(choice.backend.c_str());
  config->set_precision(choice.precision);
  config->set_shrink_policy(choice.shrink_policy);
  return CachePointer(kvasir::Cache::create(*config));
}

// The names of the backends that this machine can run; under TSan the best alone, because races are between threads,
// locks and books, which all backends have in common.
inline std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (int i = 0; i < kvasir::backend_count(); ++i) {
    if (kvasir::backend_available(i)) names.push_back(kvasir::backend_name(i));
    if (kThreadsWatched && !names.empty()) break;
  }
  return names;
}

inline std::vector<float> read_rows(kvasir::Cache& cache, int64_t sequence, int layer, const LayerChoice& choice,
                                    kvasir::Side side, int64_t first, int64_t tokens) {
  std::vector<float> rows(static_cast<size_t>(tokens) * choice.row_size());
  if (tokens > 0) cache.read(sequence, layer, side, first, tokens, rows.data());
  return rows;
}

// NMSE of `outputs` ([tokens][query_heads][head_dim]) against double-precision attention over the rows that the cache
// itself reads back from `first` on.
inline double output_nmse(kvasir::Cache& cache, int64_t sequence, int layer, const LayerChoice& choice,
                          const float* queries, int tokens, const float* outputs, int64_t first = 0) {
  const int64_t length = cache.length(sequence, layer);
  const auto keys = read_rows(cache, sequence, layer, choice, kvasir::Side::kKeys, first, length - first);
  const auto values = read_rows(cache, sequence, layer, choice, kvasir::Side::kValues, first, length - first);
  return reference::nmse(
      outputs, reference::attention(choice.shape(), keys.data(), values.data(), first, length, queries, tokens));
}

// Sets the library's threads, and back at the end.
class ThreadsGuard {
 public:
  explicit ThreadsGuard(int threads) : before_(kvasir::threads()) { kvasir::set_threads(threads); }
  ~ThreadsGuard() { kvasir::set_threads(before_); }
  ThreadsGuard(const ThreadsGuard&) = delete;

 private:
  int before_;
};

}  // namespace support
