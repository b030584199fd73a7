// What kvasir_bench measures on: the shape of a layer, and token rows for it.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kvasir/kvasir.h"

namespace bench {

constexpr int kQueryHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kRow = kKvHeads * kHeadDim;

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Whether a codec mines patterns from the prompt: it then gets data that has some.
inline bool has_patterns(int codec) {
  for (int i = 0; i < kvasir::codec_option_count(codec); ++i) {
    if (std::string(kvasir::codec_option_name(codec, i)) == "patterns") return true;
  }
  return false;
}

// Whether a codec chooses bits by what queries look at: it stores keys alone, beside uniform values, and is shown
// queries.
inline bool goes_by_queries(int codec) { return !kvasir::codec_has_side(codec, kvasir::Side::kValues); }

// Such a codec at 2.7 bits for a key, with values of 2 bits in groups of 32.
inline void choose_tiers(kvasir::CacheConfig& config) {
  config.set_codec(kvasir::kAllLayers, kvasir::Side::kKeys, "tiered", 2);
  config.set_option(kvasir::kAllLayers, kvasir::Side::kKeys, "mode", 2);
  config.set_option(kvasir::kAllLayers, kvasir::Side::kKeys, "key_bits", 2.7);
  config.set_codec(kvasir::kAllLayers, kvasir::Side::kValues, "uniform", 2);
  config.set_option(kvasir::kAllLayers, kvasir::Side::kValues, "group", 32);
}

// Whether a codec stores rows in a basis: it then gets one.
inline bool has_basis(int codec) {
  for (int i = 0; i < kvasir::codec_option_count(codec); ++i) {
    if (std::string(kvasir::codec_option_name(codec, i)) == "code_bits") return true;
  }
  return false;
}

// A basis for rows whose channels are alike: in it they spread over five octaves, so that all widths have some.
inline void add_basis(kvasir::CacheConfig& config) {
  std::vector<float> vectors;
  for (int i = 0; i < kKvHeads * kHeadDim * kHeadDim; ++i) {
    const int vector = i / kHeadDim % kHeadDim, channel = i % kHeadDim;
    const float length = std::exp2(-5.0f * static_cast<float>(vector) / kHeadDim);
    vectors.push_back(length *
                      (vector == channel ? 1.0f : 0.01f * static_cast<float>((vector * 7 + channel * 3) % 5 - 2)));
  }
  for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
    config.set_basis(kvasir::kAllLayers, side, vectors.data(), static_cast<int64_t>(vectors.size()));
  }
}

// Queries that look at one channel in 32 a hundred times as hard as at the others, so that all tiers have channels.
inline std::vector<float> uneven_query() {
  std::vector<float> query(static_cast<size_t>(kQueryHeads) * kHeadDim, 1.0f);
  for (size_t i = 7; i < query.size(); i += 32) query[i] = 100.0f;
  return query;
}

// Standard normal rows, around `clusters` centres of three deviations where that is not 0. Layers take their keys and
// values from different places of it, which costs less than new numbers.
class Rows {
 public:
  Rows(int longest, int clusters) : spare_(8191), rows_(static_cast<size_t>(longest + spare_) * kRow) {
    std::mt19937 generator(1);
    // Sums of bytes are close to normal, and quick to make.
    const auto normal = [&] {
      const uint32_t a = generator(), b = generator();
      const int sum = static_cast<int>((a & 255) + (a >> 8 & 255) + (a >> 16 & 255) + (a >> 24) + (b & 255) +
                                       (b >> 8 & 255) + (b >> 16 & 255) + (b >> 24));
      return static_cast<float>(sum - 1020) / 209.0f;  // eight bytes: standard deviation 73.9 * sqrt(8)
    };
    std::vector<float> centres(static_cast<size_t>(clusters) * kRow);
    for (float& x : centres) x = 3.0f * normal();
    for (size_t token = 0; token < rows_.size() / kRow; ++token) {
      float* row = &rows_[token * kRow];
      for (int c = 0; c < kRow; ++c) row[c] = normal();
      if (clusters == 0) continue;
      const float* centre = &centres[generator() % clusters * kRow];
      for (int c = 0; c < kRow; ++c) row[c] += centre[c];
    }
  }
  const float* at(int number) const { return rows_.data() + static_cast<size_t>(number * 131 % spare_) * kRow; }

 private:
  const int spare_;
  std::vector<float> rows_;
};

}  // namespace bench
