#include "cache/query_means.h"

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <utility>

#include "base/half.h"

namespace kvasir {
namespace {

// 0 where it is not finite. By bits, because compilers do not vectorise comparisons of floats that may trap.
float finite_magnitude(float x) {
  const auto bits = static_cast<int32_t>(float_bits(x) & 0x7FFFFFFFu);
  return bits_float(static_cast<uint32_t>(bits < 0x7F800000 ? bits : 0));
}

}  // namespace

void QueryMeans::begin(const AttentionLayer& layer, Block block) {
  block_ = std::move(block);
  const int64_t channels = int64_t{layer.kv_heads} * layer.head_dim;
  std::fill_n(sums(), channels, 0.0);
  std::fill_n(known(layer), channels, 1.0f);
}

void QueryMeans::observe(const AttentionLayer& layer, const float* queries, int64_t tokens) {
  const int d = layer.head_dim;
  for (int64_t token = 0; token < tokens; ++token) {
    for (int head = 0; head < layer.kv_heads; ++head) {
      const float* rows = queries + (static_cast<size_t>(token) * layer.query_heads + head * layer.group()) * d;
      float of_group[kMaxHeadDim] = {};
      for (int r = 0; r < layer.group(); ++r) {
        for (int c = 0; c < d; ++c) of_group[c] += finite_magnitude(rows[r * d + c]);
      }
      double* to = sums() + static_cast<size_t>(head) * d;
      for (int c = 0; c < d; ++c) to[c] += static_cast<double>(of_group[c]);
    }
  }
  count_ += tokens * layer.group();
}

void QueryMeans::read(const AttentionLayer& layer, float* out) const {
  const int64_t channels = int64_t{layer.kv_heads} * layer.head_dim;
  for (int64_t i = 0; i < channels; ++i) {
    out[i] = count_ == 0 ? known(layer)[i]
                         : static_cast<float>(std::min(sums()[i] / static_cast<double>(count_), double{FLT_MAX}));
  }
}

void QueryMeans::end_window(const AttentionLayer& layer) {
  if (count_ == 0) return;
  read(layer, known(layer));
  std::fill_n(sums(), int64_t{layer.kv_heads} * layer.head_dim, 0.0);
  count_ = 0;
}

QueryMeans QueryMeans::copy(Block block) const {
  QueryMeans other;
  other.block_ = std::move(block);
  other.count_ = count_;
  std::memcpy(other.block_.data(), block_.data(), static_cast<size_t>(block_.bytes()));
  return other;
}

}  // namespace kvasir
