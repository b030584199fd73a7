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
  int64_t sliding_window = 0;   // 0: none
  double scale = 0.0;           // 0: 1 / sqrt(head_dim)
  double soft_cap = 0.0;        // 0: none
  std::vector<double> sinks{};  // a logit in the denominator, by query head; empty: none
};

// What the newest tokens see of each other, where not all that is before them: by token, whether it sees each of them,
// and how far behind the first it stands.
struct Guesses {
  std::vector<std::vector<bool>> sees;
  std::vector<int64_t> depths;
};

struct AttentionResult {
  std::vector<double> outputs;   // in the shape of the queries
  std::vector<double> log_sums;  // [tokens][query_heads]: logarithms of the denominators
};

// keys, values: [.][kv_heads][head_dim], rows of the tokens first_row, first_row + 1, ..., length - 1.
// queries: [tokens][query_heads][head_dim], of the newest tokens: query i stands at position length - tokens + i.
inline AttentionResult attend(const AttentionShape& shape, const float* keys, const float* values, int64_t first_row,
                              int64_t length, const float* queries, int tokens, const Guesses* guesses = nullptr) {
  const int d = shape.head_dim;
  const double scale = shape.scale > 0.0 ? shape.scale : 1.0 / std::sqrt(static_cast<double>(d));
  AttentionResult result;
  result.outputs.assign(static_cast<size_t>(tokens) * shape.query_heads * d, 0.0);
  result.log_sums.assign(static_cast<size_t>(tokens) * shape.query_heads, 0.0);
  const int64_t first = length - tokens;  // of the newest tokens
  const auto place = [&](int64_t t) { return guesses && t >= first ? first + guesses->depths[t - first] : t; };
  for (int i = 0; i < tokens; ++i) {
    const auto sees = [&](int64_t t) {
      if (shape.sliding_window > 0 && place(t) <= place(first + i) - shape.sliding_window) return false;
      return guesses && t >= first ? static_cast<bool>(guesses->sees[i][t - first]) : t <= first + i;
    };
    for (int h = 0; h < shape.query_heads; ++h) {
      const int kv_head = h / (shape.query_heads / shape.kv_heads);
      const size_t row = static_cast<size_t>(i) * shape.query_heads + h;
      const float* query = queries + row * d;
      std::vector<int64_t> seen;
      std::vector<double> scores;
      for (int64_t t = first_row; t < length; ++t) {
        if (!sees(t)) continue;
        const float* key = keys + (static_cast<size_t>(t - first_row) * shape.kv_heads + kv_head) * d;
        double score = 0.0;
        for (int c = 0; c < d; ++c) score += static_cast<double>(query[c]) * key[c];
        score *= scale;
        if (shape.soft_cap > 0.0) score = shape.soft_cap * std::tanh(score / shape.soft_cap);
        seen.push_back(t);
        scores.push_back(score);
      }
      double highest = *std::max_element(scores.begin(), scores.end());
      if (!shape.sinks.empty()) highest = std::max(highest, shape.sinks[h]);
      double sum = shape.sinks.empty() ? 0.0 : std::exp(shape.sinks[h] - highest);
      for (double& score : scores) sum += score = std::exp(score - highest);
      result.log_sums[row] = highest + std::log(sum);
      for (size_t k = 0; k < seen.size(); ++k) {
        const float* value = values + (static_cast<size_t>(seen[k] - first_row) * shape.kv_heads + kv_head) * d;
        for (int c = 0; c < d; ++c) result.outputs[row * d + c] += scores[k] / sum * value[c];
      }
    }
  }
  return result;
}

inline std::vector<double> attention(const AttentionShape& shape, const float* keys, const float* values,
                                     int64_t first_row, int64_t length, const float* queries, int tokens) {
  return attend(shape, keys, values, first_row, length, queries, tokens).outputs;
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
