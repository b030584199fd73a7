// A cache of pattern pages next to what its pages and side tables must decode to.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "reference/pattern_page.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"

namespace support {

// Rows [tokens][width] of `clusters` centres of standard deviation `spread`, plus unit noise; float16 values. `drift`
// moves all centres from token to token.
inline std::vector<float> cluster_rows(uint64_t seed, int tokens, int width, int clusters, double spread,
                                       double drift = 0.0, std::vector<float>* true_centres = nullptr) {
  Random random(seed);
  std::vector<double> centres(static_cast<size_t>(clusters) * width), direction(width);
  for (double& x : centres) x = spread * random.normal();
  for (double& x : direction) x = drift * random.normal();
  std::vector<float> rows(static_cast<size_t>(tokens) * width);
  for (int t = 0; t < tokens; ++t) {
    const int cluster = random.below(clusters);
    for (int c = 0; c < width; ++c) {
      const double centre = centres[cluster * width + c] + t * direction[c];
      rows[static_cast<size_t>(t) * width + c] = round_to_half(centre + random.normal());
      if (true_centres) true_centres->push_back(static_cast<float>(centre));
    }
  }
  return rows;
}

inline LayerChoice pattern_layer(int head_dim, int bits, const reference::Options& options = {}, int kv_heads = 1) {
  LayerChoice layer;
  layer.query_heads = 2 * kv_heads;
  layer.kv_heads = kv_heads;
  layer.head_dim = head_dim;
  layer.keys = layer.values = {"pattern", bits, options};
  return layer;
}

// One layer, and where the table of the sequence in hand comes from.
class PatternScene {
 public:
  explicit PatternScene(const LayerChoice& layer, const std::string& backend = "auto", int sinks = 0) {
    choice_.layers = {layer};
    choice_.backend = backend;
    choice_.sinks = sinks;
    cache_ = make_cache(choice_);
    id_ = cache_->new_sequence();
  }

  kvasir::Cache& cache() { return *cache_; }
  int64_t id() const { return id_; }
  const LayerChoice& layer() const { return choice_.layers[0]; }
  int fixed() const { return fixed_; }
  int64_t pages() { return cache_->page_count(id_, 0); }

  void append(const float* keys, const float* values, int64_t tokens) {
    cache_->append(id_, 0, keys, values, tokens);
    if (fixed_ == 0 && pages() > 0) {
      fixed_ = static_cast<int>(cache_->table_size(id_, 0, kvasir::Side::kKeys));
      first_adding_page_ = pages();
    }
  }

  reference::PatternTable table(kvasir::Side side, int head = 0) {
    const int64_t size = cache_->table_size(id_, 0, side);
    std::vector<float> vectors(static_cast<size_t>(size) * layer().head_dim);
    REQUIRE(cache_->read_table(id_, 0, side, head, vectors.data(), size) == size);
    return {layer().head_dim, fixed_, first_adding_page_, vectors};
  }

  reference::PageShape shape(kvasir::Side side) const {
    const SideChoice& wanted = side == kvasir::Side::kKeys ? layer().keys : layer().values;
    return reference::pattern::shape(static_cast<reference::Side>(side), wanted.bits, layer().head_dim, wanted.options);
  }

  std::vector<uint8_t> page(kvasir::Side side, int64_t number, int head = 0) {
    std::vector<uint8_t> bytes(static_cast<size_t>(cache_->read_page(id_, 0, number, side, head, nullptr, 0)));
    cache_->read_page(id_, 0, number, side, head, bytes.data(), static_cast<int64_t>(bytes.size()));
    return bytes;
  }

  // Every page is the one that the format prescribes for these rows ([tokens][kv_heads][head_dim]) and its labels, and
  // reads back as the reference decodes it. Returns the tokens with a label above `fixed`.
  int check_pages(kvasir::Side side, const std::vector<float>& rows) {
    int added = 0;
    const int d = layer().head_dim, heads = layer().kv_heads;
    for (int head = 0; head < heads; ++head) {
      const reference::PatternTable known = table(side, head);
      for (int64_t number = 0; number < pages(); ++number) {
        std::vector<float> part;
        for (int t = 0; t < reference::kTokens; ++t) {
          const float* row = &rows[((choice_.sinks + number * reference::kTokens + t) * heads + head) * d];
          part.insert(part.end(), row, row + d);
        }
        const std::vector<uint8_t> bytes = page(side, number, head);
        const uint8_t* labels = bytes.data() + reference::pattern::labels_offset(shape(side));
        for (int t = 0; t < reference::kTokens; ++t) {
          REQUIRE(labels[t] <= known.labels(number));
          added += labels[t] > known.fixed;
        }
        REQUIRE(bytes == reference::pattern::encode(shape(side), part.data(), labels, known, number));
        const auto decoded = reference::pattern::decode(shape(side), bytes.data(), known, number);
        const auto read =
            read_rows(*cache_, id_, 0, layer(), side, choice_.sinks + number * reference::kTokens, reference::kTokens);
        int wrong = 0;
        for (int t = 0; t < reference::kTokens; ++t) {
          for (int c = 0; c < d; ++c) wrong += read[(t * heads + head) * d + c] != decoded[t * d + c];
        }
        REQUIRE_MESSAGE(wrong == 0, "page ", number, ", head ", head);
      }
    }
    return added;
  }

  double attention_nmse(uint64_t seed, int tokens = 1) {
    const auto queries = float_rows(seed, tokens, layer().query_size(), 0.3);
    std::vector<float> outputs(queries.size());
    cache_->attend(0, &id_, 1, tokens, queries.data(), outputs.data());
    return output_nmse(*cache_, id_, 0, layer(), queries.data(), tokens, outputs.data());
  }

 private:
  CacheChoice choice_;
  CachePointer cache_;
  int64_t id_ = 0;
  int fixed_ = 0;
  int64_t first_adding_page_ = 0;
};

}  // namespace support
