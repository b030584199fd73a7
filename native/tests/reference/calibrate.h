// Calibration by its definitions, in double precision, one element at a time. Stored elements follow docs/format.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/attention.h"
#include "reference/half.h"

namespace reference {

// Elements that were rounded to float16, stored as one group of the codec "uniform" and read again. Codes in float32
// arithmetic, as the format demands: the nearer of two levels is not for double precision to decide.
struct StoredGroup {
  std::vector<double> values;
  double lo, range;

  StoredGroup(const std::vector<float>& elements, int bits) {
    std::vector<float> halves;
    for (const float x : elements) halves.push_back(static_cast<float>(half_value(half_nearest(x))));
    const float least = *std::min_element(halves.begin(), halves.end());
    const float most = *std::max_element(halves.begin(), halves.end());
    lo = least;
    range = half_value(half_up(static_cast<double>(most) - static_cast<double>(least)));
    const float levels = static_cast<float>((1 << bits) - 1);
    const float scale = range > 0.0 ? levels / static_cast<float>(range) : 0.0f;
    const float step = static_cast<float>(range) / levels;
    for (const float x : halves) {
      const float distance = x - least;
      const float code = std::min(levels, std::nearbyintf(distance * scale));
      const float scaled = code * step;
      values.push_back(static_cast<double>(least + scaled));
    }
  }
};

struct Tensor {
  const std::vector<float>& data;  // [tokens][heads][head_dim]
  int tokens, heads, head_dim;

  float at(int t, int h, int c) const { return data[(static_cast<size_t>(t) * heads + h) * head_dim + c]; }
};

// Sum of |gradient * (x - stored x)|; by_channel: groups of tokens of one channel, within pages of 128 tokens.
inline double sensitivity(const Tensor& rows, const Tensor& gradients, bool by_channel, int group,
                          const std::vector<float>& lambda, int bits) {
  double sum = 0.0;
  const int outer = by_channel ? rows.head_dim : rows.tokens;
  const int along = by_channel ? rows.tokens : rows.head_dim;
  for (int h = 0; h < rows.heads; ++h) {
    for (int o = 0; o < outer; ++o) {
      for (int first = 0; first < along; first += group) {
        const int end = std::min(along, first + group);
        std::vector<float> scaled;
        const auto token = [&](int i) { return by_channel ? i : o; };
        const auto channel = [&](int i) { return by_channel ? o : i; };
        const auto factor = [&](int i) { return lambda.empty() ? 1.0f : lambda[h * rows.head_dim + channel(i)]; };
        for (int i = first; i < end; ++i) scaled.push_back(rows.at(token(i), h, channel(i)) / factor(i));
        const StoredGroup stored(scaled, bits);
        for (int i = first; i < end; ++i) {
          const double x = rows.at(token(i), h, channel(i));
          const double gradient = gradients.at(token(i), h, channel(i));
          sum += std::fabs(gradient * (x - static_cast<double>(factor(i)) * stored.values[i - first]));
        }
      }
    }
  }
  return sum;
}

// RoPE of one row of one head at a (fractional) position, as a product of complex numbers.
inline std::vector<double> rotated(const std::vector<double>& row, double base, bool halves, double position) {
  const int d = static_cast<int>(row.size());
  std::vector<double> result(row.size());
  for (int j = 0; j < d / 2; ++j) {
    const int a = halves ? j : 2 * j, b = halves ? j + d / 2 : 2 * j + 1;
    const double radius = std::hypot(row[a], row[b]);
    const double angle = std::atan2(row[b], row[a]) + position / std::pow(base, 2.0 * j / d);
    result[a] = radius * std::cos(angle);
    result[b] = radius * std::sin(angle);
  }
  return result;
}

struct ScalingError {
  double error, energy;
};

// Causal attention of the newest queries with keys as given and with keys stored per token after scaling.
inline ScalingError key_scaling_error(const Tensor& keys, const Tensor& values, const Tensor& queries,
                                      double softmax_scale, int bits, int group, const std::vector<float>& lambda) {
  const int d = keys.head_dim;
  std::vector<float> stored;
  for (int t = 0; t < keys.tokens; ++t) {
    for (int h = 0; h < keys.heads; ++h) {
      for (int first = 0; first < d; first += group) {
        std::vector<float> scaled;
        for (int c = first; c < std::min(d, first + group); ++c) scaled.push_back(keys.at(t, h, c) / lambda[h * d + c]);
        const StoredGroup read(scaled, bits);
        for (size_t i = 0; i < scaled.size(); ++i) {
          stored.push_back(static_cast<float>(read.values[i] * lambda[h * d + first + i]));
        }
      }
    }
  }
  const AttentionShape shape = {queries.heads, keys.heads, d, 0, softmax_scale};
  const auto output = [&](const std::vector<float>& k) {
    return attention(shape, k.data(), values.data.data(), 0, keys.tokens, queries.data.data(), queries.tokens);
  };
  const auto right = output(keys.data), changed = output(stored);
  ScalingError result = {0.0, 0.0};
  for (size_t i = 0; i < right.size(); ++i) {
    result.error += (changed[i] - right[i]) * (changed[i] - right[i]);
    result.energy += right[i] * right[i];
  }
  return result;
}

}  // namespace reference
