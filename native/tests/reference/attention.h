// Attention as its definition has it, in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace reference {

struct AttentionShape {
  int query_heads;
  int kv_heads;
  int head_dim;
  int64_t sliding_window = 0;  // 0: none
  double scale = 0.0;          // 0: 1 / sqrt(head_dim)
};

// keys, values: [.][kv_heads][head_dim], rows of the tokens first_row, first_row + 1, ..., length - 1.
// queries: [tokens][query_heads][head_dim], of the newest tokens: query i stands at position length - tokens + i.
// Returns outputs in the shape of the queries.
inline std::vector<double> attention(const AttentionShape& shape, const float* keys, const float* values,
                                     int64_t first_row, int64_t length, const float* queries, int tokens) {
  const int d = shape.head_dim;
  const double scale = shape.scale > 0.0 ? shape.scale : 1.0 / std::sqrt(static_cast<double>(d));
  std::vector<double> outputs(static_cast<size_t>(tokens) * shape.query_heads * d, 0.0);
  std::vector<double> scores;
  for (int i = 0; i < tokens; ++i) {
    const int64_t position = length - tokens + i;
    const int64_t oldest = shape.sliding_window == 0 ? 0 : std::max<int64_t>(0, position - shape.sliding_window + 1);
    for (int h = 0; h < shape.query_heads; ++h) {
      const int kv_head = h / (shape.query_heads / shape.kv_heads);
      const float* query = queries + (static_cast<size_t>(i) * shape.query_heads + h) * d;
      double* output = outputs.data() + (static_cast<size_t>(i) * shape.query_heads + h) * d;
      scores.clear();
      for (int64_t t = oldest; t <= position; ++t) {
        const float* key = keys + (static_cast<size_t>(t - first_row) * shape.kv_heads + kv_head) * d;
        double dot = 0.0;
        for (int c = 0; c < d; ++c) dot += static_cast<double>(query[c]) * key[c];
        scores.push_back(dot * scale);
      }
      const double highest = *std::max_element(scores.begin(), scores.end());
      double sum = 0.0;
      for (double& score : scores) sum += score = std::exp(score - highest);
      for (int64_t t = oldest; t <= position; ++t) {
        const float* value = values + (static_cast<size_t>(t - first_row) * shape.kv_heads + kv_head) * d;
        const double weight = scores[static_cast<size_t>(t - oldest)] / sum;
        for (int c = 0; c < d; ++c) output[c] += weight * value[c];
      }
    }
  }
  return outputs;
}

// Normalised mean squared error: sum of squared differences over sum of squares. NaN counts as infinite.
inline double nmse(const float* got, const std::vector<double>& expected) {
  double error = 0.0, power = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = got[i] - expected[i];
    error += difference * difference;
    power += expected[i] * expected[i];
  }
  if (std::isnan(error)) return INFINITY;
  return power > 0.0 ? error / power : error > 0.0 ? INFINITY : 0.0;
}

}  // namespace reference
