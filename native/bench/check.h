// The check of a timed output: attention in double over the rows that the cache reads back, for some of its heads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kvasir/kvasir.h"

namespace bench {

struct Shape {
  int query_heads;
  int kv_heads;
  int head_dim;
  int context;
};

struct Head {
  int index;
  std::vector<double> output;
};

// Reads one side in pieces and hands over each token's row: [kv_heads][head_dim].
template <class Use>
void each_row(kvasir::Cache& cache, int64_t sequence, int layer, kvasir::Side side, const Shape& shape, Use use) {
  constexpr int kPiece = 1024;
  const size_t row_size = static_cast<size_t>(shape.kv_heads) * shape.head_dim;
  std::vector<float> rows(kPiece * row_size);
  for (int first = 0; first < shape.context; first += kPiece) {
    const int count = std::min(kPiece, shape.context - first);
    cache.read(sequence, layer, side, first, count, rows.data());
    for (int i = 0; i < count; ++i) use(first + i, rows.data() + i * row_size);
  }
}

// query: [query_heads][head_dim]. Computes every `stride`-th head. rope: frequencies where keys are stored before it.
inline std::vector<Head> double_attention(kvasir::Cache& cache, int64_t sequence, int layer, const Shape& shape,
                                          const float* query, int stride, const std::vector<double>* rope = nullptr) {
  const int d = shape.head_dim;
  const int group = shape.query_heads / shape.kv_heads;
  std::vector<Head> heads;
  for (int h = 0; h < shape.query_heads; h += stride) heads.push_back({h, std::vector<double>(d, 0.0)});
  std::vector<std::vector<double>> weights(heads.size(), std::vector<double>(shape.context));
  std::vector<float> turned(static_cast<size_t>(shape.kv_heads) * d);
  each_row(cache, sequence, layer, kvasir::Side::kKeys, shape, [&](int token, const float* row) {
    if (rope) {
      std::copy(row, row + turned.size(), turned.begin());
      kvasir::rotate(turned.data(), 1, shape.kv_heads, d, rope->data(), kvasir::RopePairs::kHalves, token, 1.0);
      row = turned.data();
    }
    for (size_t i = 0; i < heads.size(); ++i) {
      const float* key = row + heads[i].index / group * d;
      const float* q = query + heads[i].index * d;
      double dot = 0.0;
      for (int c = 0; c < d; ++c) dot += static_cast<double>(q[c]) * key[c];
      weights[i][token] = dot / std::sqrt(static_cast<double>(d));
    }
  });
  for (auto& row : weights) {
    const double highest = *std::max_element(row.begin(), row.end());
    double sum = 0.0;
    for (double& w : row) sum += w = std::exp(w - highest);
    for (double& w : row) w /= sum;
  }
  each_row(cache, sequence, layer, kvasir::Side::kValues, shape, [&](int token, const float* row) {
    for (size_t i = 0; i < heads.size(); ++i) {
      const float* value = row + heads[i].index / group * d;
      for (int c = 0; c < d; ++c) heads[i].output[c] += weights[i][token] * value[c];
    }
  });
  return heads;
}

struct Errors {
  double nmse;
  double max_error;  // over the root mean square of the output
};

inline Errors errors_of(const std::vector<Head>& expected, const float* output, const Shape& shape) {
  double error = 0.0, power = 0.0, largest = 0.0, count = 0.0;
  for (const Head& head : expected) {
    for (int c = 0; c < shape.head_dim; ++c) {
      const double difference = output[head.index * shape.head_dim + c] - head.output[c];
      error += difference * difference;
      power += head.output[c] * head.output[c];
      largest = std::max(largest, std::fabs(difference));
      count += 1.0;
    }
  }
  return {error / power, largest / std::sqrt(power / count)};
}

}  // namespace bench
