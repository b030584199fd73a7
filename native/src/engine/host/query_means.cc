#include "engine/host/query_means.h"

#include <algorithm>
#include <cfloat>

#include "base/half.h"

namespace kvasir {
namespace {

// 0 where it is not finite. By bits, because compilers do not vectorise comparisons of floats that may trap.
float finite_magnitude(float x) {
  const auto bits = static_cast<int32_t>(float_bits(x) & 0x7FFFFFFFu);
  return bits_float(static_cast<uint32_t>(bits < 0x7F800000 ? bits : 0));
}

}  // namespace

void clear_queries(const AttentionLayer& layer, const QuerySums& sums) {
  std::fill_n(sums.sums, QuerySums::channels(layer), 0.0);
  std::fill_n(sums.known, QuerySums::channels(layer), 1.0f);
  *sums.count = 0;
}

void add_queries(const AttentionLayer& layer, const float* queries, int64_t tokens, const QuerySums& sums) {
  const int d = layer.head_dim;
  for (int64_t token = 0; token < tokens; ++token) {
    for (int head = 0; head < layer.kv_heads; ++head) {
      const float* rows = queries + (static_cast<size_t>(token) * layer.query_heads + head * layer.group()) * d;
      float of_group[kMaxHeadDim] = {};
      for (int r = 0; r < layer.group(); ++r) {
        for (int c = 0; c < d; ++c) of_group[c] += finite_magnitude(rows[r * d + c]);
      }
      double* to = sums.sums + static_cast<size_t>(head) * d;
      for (int c = 0; c < d; ++c) to[c] += static_cast<double>(of_group[c]);
    }
  }
  *sums.count += tokens * layer.group();
}

void read_query_means(const AttentionLayer& layer, const QuerySums& sums, float* out) {
  const int64_t count = *sums.count;
  for (int64_t i = 0; i < QuerySums::channels(layer); ++i) {
    out[i] = count == 0 ? sums.known[i]
                        : static_cast<float>(std::min(sums.sums[i] / static_cast<double>(count), double{FLT_MAX}));
  }
}

void settle_queries(const AttentionLayer& layer, const QuerySums& sums) {
  if (*sums.count == 0) return;
  read_query_means(layer, sums, sums.known);
  std::fill_n(sums.sums, QuerySums::channels(layer), 0.0);
  *sums.count = 0;
}

}  // namespace kvasir
