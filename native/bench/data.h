// What kvasir_bench measures on: the shape of a layer, and token rows for it.
#pragma once

#include <chrono>
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
