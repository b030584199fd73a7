// CommVQ: decode attention next to 16 bits, encoding, and training.
//
// Codebooks are random, because the work does not depend on what they hold: keys of R stages by 64 entries, values of
// one bit per element by an encoder of 64 hidden units. Steps take few layers in turn, because encoding them takes
// long: their codes are in the processor's caches, and what is measured is arithmetic, which is what bounds it.
#pragma once

#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "ceiling.h"
#include "check.h"
#include "data.h"
#include "options.h"
#include "report.h"

namespace bench {

inline std::vector<float> random_floats(size_t count, float scale, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& x : values) x = normal(generator);
  return values;
}

class CommVqLayers {
 public:
  static constexpr int kStages = 11, kCodes = kRow;

  CommVqLayers(const Options& options, int layers, const Rows& data, int context) : layers_(layers) {
    constexpr int kEntries = 64, kHidden = 64;
    const auto tables = random_floats(static_cast<size_t>(kKvHeads) * kStages * kEntries * kHeadDim, 0.3f, 1);
    keys_.reset(
        kvasir::KeyCodebook::create(kKvHeads, kHeadDim, kvasir::RopePairs::kHalves, kStages, kEntries, tables.data()));
    const auto table = random_floats(static_cast<size_t>(kCodes) * kRow, 0.05f, 2);
    values_.reset(kvasir::ValueCodebook::create(kRow, kCodes, table.data(), nullptr));
    const std::vector<float> ones(kRow, 1.0f), zeros(2 * kCodes, 0.0f);
    const auto first = random_floats(static_cast<size_t>(kHidden) * kRow, 0.03f, 3);
    const auto second = random_floats(static_cast<size_t>(2) * kCodes * kHidden, 0.1f, 4);
    const std::unique_ptr<kvasir::ValueEncoder, void (*)(kvasir::ValueEncoder*)> encoder(
        kvasir::ValueEncoder::create(kRow, kHidden, kCodes, ones.data(), ones.data(), zeros.data(), first.data(),
                                     zeros.data(), second.data(), zeros.data()),
        kvasir::ValueEncoder::destroy);

    const std::unique_ptr<kvasir::CacheConfig, void (*)(kvasir::CacheConfig*)> config(
        kvasir::CacheConfig::create(layers), kvasir::CacheConfig::destroy);
    config->set_heads(kvasir::kAllLayers, kQueryHeads, kKvHeads, kHeadDim);
    frequencies_.resize(kHeadDim / 2);
    kvasir::rope_frequencies(500000.0, kHeadDim, frequencies_.data());
    config->set_rope(kvasir::kAllLayers, kvasir::RopePairs::kHalves, frequencies_.data(), kHeadDim / 2, 1.0);
    config->set_codec(kvasir::kAllLayers, kvasir::Side::kKeys, "commvq", 1);
    config->set_codec(kvasir::kAllLayers, kvasir::Side::kValues, "commvq", 1);
    config->set_key_codebook(kvasir::kAllLayers, *keys_, 0);
    config->set_value_codebook(kvasir::kAllLayers, *values_, *encoder, 0);
    config->set_backend(options.backend.c_str());
    config->set_precision(options.fast ? kvasir::Precision::kFast : kvasir::Precision::kExact);
    cache_.reset(kvasir::Cache::create(*config));
    sequence_ = cache_->new_sequence();
    const double start = seconds_now();
    for (int layer = 0; layer < layers; ++layer) {
      cache_->append(sequence_, layer, data.at(2 * layer), data.at(2 * layer + 1), context);
    }
    tokens_per_second_ = static_cast<double>(layers) * context / (seconds_now() - start);
  }

  kvasir::Cache& cache() const { return *cache_; }
  int64_t sequence() const { return sequence_; }
  int layers() const { return layers_; }
  double tokens_per_second() const { return tokens_per_second_; }
  const std::vector<double>& frequencies() const { return frequencies_; }

 private:
  const int layers_;
  std::vector<double> frequencies_;
  std::unique_ptr<kvasir::KeyCodebook, void (*)(kvasir::KeyCodebook*)> keys_{nullptr, kvasir::KeyCodebook::destroy};
  std::unique_ptr<kvasir::ValueCodebook, void (*)(kvasir::ValueCodebook*)> values_{nullptr,
                                                                                   kvasir::ValueCodebook::destroy};
  std::unique_ptr<kvasir::Cache, void (*)(kvasir::Cache*)> cache_{nullptr, kvasir::Cache::destroy};
  int64_t sequence_ = 0;
  double tokens_per_second_ = 0.0;
};

// What a step of one bit is made of: rows of the key tables added up, keys turned and multiplied with the queries in
// float32, bits of values multiplied with the bytes of weights for all rows of the codebook.
inline Work commvq_work(int context, bool fast) {
  const double keys = static_cast<double>(context) * kRow;
  Work work;
  work.bytes = keys / 4;
  work.short_additions = keys * 2 * CommVqLayers::kStages;
  work.float_products = keys * (2 + kQueryHeads / kKvHeads);
  work.byte_products = static_cast<double>(context) * CommVqLayers::kCodes * kQueryHeads * (fast ? 1 : 2);
  return work;
}

// yardstick: microseconds of the 16-bit codec with these threads.
inline Result time_commvq(const Options& options, const CommVqLayers& filled, int context, double yardstick,
                          const std::vector<float>& query) {
  std::vector<float> output(query.size()), scratch(query.size());
  std::vector<double> samples;
  double total = 0.0;
  for (int i = 0; total < options.seconds || samples.size() < 9; ++i) {
    const int layer = i % filled.layers();
    const int64_t id = filled.sequence();
    const double start = seconds_now();
    filled.cache().attend(layer, &id, 1, 1, query.data(), layer == 0 ? output.data() : scratch.data());
    samples.push_back((seconds_now() - start) * 1e6);
    total += samples.back() / 1e6;
  }
  const Shape shape{kQueryHeads, kKvHeads, kHeadDim, context};
  const auto expected =
      double_attention(filled.cache(), filled.sequence(), 0, shape, query.data(), 9, &filled.frequencies());
  const Errors errors = errors_of(expected, output.data(), shape);
  const double us = quantile(samples, 0.5);
  const std::unique_ptr<kvasir::CacheStats, void (*)(kvasir::CacheStats*)> stats(filled.cache().stats(),
                                                                                 kvasir::CacheStats::destroy);
  std::printf("commvq-1 at %d tokens, %d threads: %.1f us/step, %.2f times the 16-bit time (NMSE %.1e)\n", context,
              kvasir::threads(), us, us / yardstick, errors.nmse);
  Result result{};
  result.codec = "commvq";
  result.bits = 1;
  result.context = context;
  result.threads = kvasir::threads();
  result.us = us;
  result.spread = (quantile(samples, 0.75) - quantile(samples, 0.25)) / 2 / us;
  result.gbps = static_cast<double>(stats->page_bytes(0)) / us / 1e3;
  result.ratio16 = yardstick / us;
  result.nmse = errors.nmse;
  result.max_error = errors.max_error;
  result.bits_per_element = stats->page_bits_per_element(0);
  result.append_gbps = 2 * filled.tokens_per_second() * kRow * sizeof(float) / 1e9;
  result.samples = static_cast<int>(samples.size());
  return result;
}

// A small part of a training, and what the whole would take.
inline void time_key_training() {
  constexpr int kTokens = 4096, kSteps = 8, kStages = 11, kAllSteps = 100, kAllTokens = 16384;
  const std::unique_ptr<kvasir::KeyTrainer, void (*)(kvasir::KeyTrainer*)> trainer(
      kvasir::KeyTrainer::create(kKvHeads, kHeadDim, kvasir::RopePairs::kHalves, 1, 64, 1),
      kvasir::KeyTrainer::destroy);
  trainer->set_steps(kSteps);
  const auto rows = random_floats(static_cast<size_t>(kTokens) * kRow, 1.0f, 5);
  trainer->add(rows.data(), kTokens);
  int steps = 0;
  const double start = seconds_now();
  while (trainer->step()) ++steps;
  const double each = (seconds_now() - start) / (steps > 0 ? steps : 1) / kTokens;
  std::printf(
      "commvq training of keys, %d threads: %.2f us per token and step (%d heads); %d tokens, %d stages of %d "
      "steps would take %.1f minutes\n",
      kvasir::threads(), 1e6 * each, kKvHeads, kAllTokens, kStages, kAllSteps,
      each * kAllTokens * kStages * kAllSteps / 60);
}

}  // namespace bench
