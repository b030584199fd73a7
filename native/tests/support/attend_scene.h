// A cache of one codec with all that attention can do switched on or off, ragged batches of queries for it, and what
// they must give: double precision over the rows that the cache reads back.
#pragma once

#include <cmath>
#include <complex>
#include <cstring>
#include <string>
#include <vector>

#include "kvasir/kvasir.h"
#include "reference/attention.h"
#include "reference/half.h"
#include "support/caches.h"
#include "support/commvq_scene.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/spectral_basis.h"
#include "support/tolerance.h"

namespace support {

// One layer's way of attending.
struct Manner {
  int64_t sliding_window = 0;
  float soft_cap = 0.0f;
  bool sinks = false;
};

struct AttendChoice {
  std::string codec;
  std::string backend;
  int head_dim = 64;
  int group = 2;
  Manner own;     // of layer 0, which has keys and values,
  Manner shared;  // and of layer 1, which takes them from it

  static constexpr int kKvHeads = 2;
  int query_heads() const { return kKvHeads * group; }
  int row_size() const { return kKvHeads * head_dim; }
  int query_size() const { return query_heads() * head_dim; }
  std::string text() const { return codec + " on " + backend + ", head dim " + std::to_string(head_dim); }
};

// A ragged batch: which sequences, and how many query tokens of each; masks where `guesses` has any.
struct AttendQueries {
  std::vector<int64_t> ids;
  std::vector<int> tokens;
  std::vector<uint64_t> masks;  // by row, or empty
  std::vector<int> depths;      // the same

  int rows() const {
    int rows = 0;
    for (const int each : tokens) rows += each;
    return rows;
  }
};

class AttendScene {
 public:
  explicit AttendScene(const AttendChoice& choice) : choice_(choice) {
    const ConfigPointer config(kvasir::CacheConfig::create(2));
    const std::string& codec = choice.codec;
    const bool trained = codec == "commvq";
    const int bits = codec == "f16" || codec == "progressive" ? 16 : trained ? 1 : 2;
    config->set_heads(0, choice.query_heads(), choice.kKvHeads, choice.head_dim);
    config->set_codec(0, kvasir::Side::kKeys, codec.c_str(), bits);
    config->set_codec(0, kvasir::Side::kValues, codec == "tiered" ? "uniform" : codec.c_str(), bits);
    if (trained) add_codebooks(*config);
    if (codec == "spectral") add_bases(*config, 0, choice.kKvHeads, choice.head_dim);
    config->set_source(1, 0);
    for (int layer = 0; layer < 2; ++layer) set_manner(*config, layer);
    config->set_sinks(4);
    config->set_window(70);
    config->set_backend(choice.backend.c_str());
    cache_.reset(kvasir::Cache::create(*config));
  }

  kvasir::Cache& cache() { return *cache_; }
  const AttendChoice& choice() const { return choice_; }

  int64_t add(int tokens, uint64_t seed) {
    const int64_t id = cache_->new_sequence();
    append(id, tokens, seed);
    return id;
  }
  void append(int64_t id, int tokens, uint64_t seed) {
    const auto keys = make_half_rows(Profile::kNormal, seed, tokens, choice_.row_size());
    const auto values = make_half_rows(Profile::kNormal, seed + 1, tokens, choice_.row_size());
    cache_->append(id, 0, keys.data(), values.data(), tokens);
  }

  kvasir::AttendBatch batch(int layer, const AttendQueries& wanted) const {
    kvasir::AttendBatch batch;
    batch.layer = layer;
    batch.sequences = wanted.ids.data();
    batch.count = static_cast<int>(wanted.ids.size());
    batch.tokens = wanted.tokens.data();
    if (!wanted.masks.empty()) batch.masks = wanted.masks.data();
    if (!wanted.depths.empty()) batch.depths = wanted.depths.data();
    return batch;
  }

  // Outputs and log-sums of one attend in float32, against the reference.
  void check(int layer, const AttendQueries& wanted, const std::vector<float>& queries, const std::string& what) {
    std::vector<float> outputs(queries.size(), -99.0f);
    std::vector<float> log_sums(queries.size() / choice_.head_dim, -99.0f);
    kvasir::AttendBatch call = batch(layer, wanted);
    call.queries.data = queries.data();
    call.outputs.data = outputs.data();
    call.log_sums = log_sums.data();
    cache_->attend(call);
    compare(layer, wanted, queries, outputs, log_sums, true, what);
  }

  // sinks: whether learned ones count.
  void compare(int layer, const AttendQueries& wanted, const std::vector<float>& queries,
               const std::vector<float>& outputs, const std::vector<float>& log_sums, bool sinks,
               const std::string& what) {
    size_t row = 0;
    for (size_t i = 0; i < wanted.ids.size(); ++i) {
      const auto expected = reference_of(layer, wanted, i, queries.data() + row * choice_.query_size(), sinks);
      const double nmse = reference::nmse(outputs.data() + row * choice_.query_size(), expected.outputs);
      CHECK_MESSAGE(nmse <= limit(), choice_.text(), ", ", what, ", sequence ", i, ": NMSE ", nmse);
      double off = 0.0;
      for (size_t k = 0; k < expected.log_sums.size() && !log_sums.empty(); ++k) {
        const double difference = std::fabs(log_sums[row * choice_.query_heads() + k] - expected.log_sums[k]);
        off = difference <= off ? off : difference;  // NaN stays
      }
      CHECK_MESSAGE(off <= log_limit(), choice_.text(), ", ", what, ", sequence ", i, ": log-sum off by ", off);
      row += static_cast<size_t>(wanted.tokens[i]);
    }
  }

  reference::AttentionResult reference_of(int layer, const AttendQueries& wanted, size_t i, const float* queries,
                                          bool sinks) {
    const Manner& manner = layer == 0 ? choice_.own : choice_.shared;
    reference::AttentionShape shape = {
        choice_.query_heads(), choice_.kKvHeads, choice_.head_dim, manner.sliding_window, 0.0, manner.soft_cap, {}};
    if (manner.sinks && sinks) {
      for (const float logit : sink_logits(layer)) shape.sinks.push_back(logit);
    }
    const int tokens = wanted.tokens[i];
    size_t row = 0;
    for (size_t before = 0; before < i; ++before) row += static_cast<size_t>(wanted.tokens[before]);
    reference::Guesses guesses;
    if (!wanted.masks.empty() && wanted.masks[row] != 0) {
      for (int t = 0; t < tokens; ++t) {
        guesses.sees.emplace_back();
        int64_t seen = 0;
        for (int j = 0; j < tokens; ++j) {
          guesses.sees.back().push_back((wanted.masks[row + t] >> j & 1) != 0);
          seen += guesses.sees.back().back() ? 1 : 0;
        }
        guesses.depths.push_back(wanted.depths.empty() ? seen - 1 : wanted.depths[row + t]);
      }
    }
    const reference::Guesses* tree = guesses.sees.empty() ? nullptr : &guesses;
    const int64_t length = cache_->length(wanted.ids[i], layer);
    int64_t first = 0;
    if (manner.sliding_window > 0) first = std::max<int64_t>(0, length - tokens - manner.sliding_window + 1);
    std::vector<float> rows[2];
    for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
      auto& each = rows[static_cast<int>(side)];
      each.resize(static_cast<size_t>(length - first) * choice_.row_size());
      cache_->read(wanted.ids[i], layer, side, first, length - first, each.data());
    }
    if (choice_.codec == "commvq") turn(rows[0], first, length - tokens, tree);
    return reference::attend(shape, rows[0].data(), rows[1].data(), first, length, queries, tokens, tree);
  }

  std::vector<float> sink_logits(int layer) const {
    std::vector<float> logits;
    for (int h = 0; h < choice_.query_heads(); ++h) logits.push_back(1.5f * static_cast<float>(h % 5) - 2.0f - layer);
    return logits;
  }

  double limit() const { return nmse_limit(kvasir::Precision::kExact, choice_.codec == "f16"); }
  // A log-sum is off by no more than the scores are. Outputs of the promised NMSE have weights, and so scores, that are
  // off by its root; single scores by a few times that. With float16 rows there is float32 alone.
  double log_limit() const { return 8 * std::sqrt(limit()) + 1e-5; }

 private:
  void set_manner(kvasir::CacheConfig& config, int layer) const {
    const Manner& manner = layer == 0 ? choice_.own : choice_.shared;
    config.set_sliding_window(layer, manner.sliding_window);
    config.set_soft_cap(layer, manner.soft_cap);
    const auto logits = sink_logits(layer);
    if (manner.sinks) config.set_sink_logits(layer, logits.data(), static_cast<int>(logits.size()));
  }

  void add_codebooks(kvasir::CacheConfig& config) const {
    constexpr int kEntries = 16;
    const int d = choice_.head_dim, stages = d / 8, row = choice_.row_size();  // 4 bits a stage: one bit a channel
    const auto tables = float_rows(11, choice_.kKvHeads * stages * kEntries, d, 0.3);
    const Owned<kvasir::KeyCodebook> keys(
        kvasir::KeyCodebook::create(choice_.kKvHeads, d, kvasir::RopePairs::kHalves, stages, kEntries, tables.data()));
    const auto table = float_rows(12, row, row, 0.1);
    const Owned<kvasir::ValueCodebook> values(kvasir::ValueCodebook::create(row, row, table.data(), nullptr));
    const auto frequencies = rope();
    config.set_rope(0, kvasir::RopePairs::kHalves, frequencies.data(), d / 2, 1.0);
    config.set_key_codebook(0, *keys, 1);
    config.set_value_codebook(0, *values);
  }

  std::vector<double> rope() const {
    std::vector<double> frequencies(static_cast<size_t>(choice_.head_dim / 2));
    kvasir::rope_frequencies(10000.0, choice_.head_dim, frequencies.data());
    return frequencies;
  }

  // Keys of the tokens from `first` on after RoPE; guesses, from token `newest` on, stand by their depths.
  void turn(std::vector<float>& keys, int64_t first, int64_t newest, const reference::Guesses* tree) const {
    const auto frequencies = rope();
    const int d = choice_.head_dim;
    for (size_t i = 0; i < keys.size() / d; ++i) {
      const int64_t token = first + static_cast<int64_t>(i) / choice_.kKvHeads;
      const int64_t position = tree && token >= newest ? newest + tree->depths[token - newest] : token;
      float* row = keys.data() + i * d;
      for (int j = 0; j < d / 2; ++j) {
        const auto turned = std::complex<double>(row[j], row[j + d / 2]) *
                            std::polar(1.0, static_cast<double>(position) * frequencies[j]);
        row[j] = static_cast<float>(turned.real());
        row[j + d / 2] = static_cast<float>(turned.imag());
      }
    }
  }

  const AttendChoice choice_;
  CachePointer cache_;
};

}  // namespace support
