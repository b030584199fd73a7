// Heads of spectral pages, read from docs/format.md alone, in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace reference {

struct SpectralHead {
  std::vector<int> width;         // [head_dim]
  std::vector<double> norm;       // [128]
  std::vector<double> low, step;  // [head_dim]: what code 0 stands for, and a step
  std::vector<int> code;          // [128][head_dim]
  // [128][head_dim], norms left out.
  std::vector<double> coefficients;
};

inline size_t spectral_head_bytes(int d, int tile_bits) {
  const size_t before = (static_cast<size_t>(3 * d / 8 + 128 + 2 * d) + 63) / 64 * 64;
  return before + static_cast<size_t>(tile_bits) * 128;
}

inline SpectralHead read_spectral(const uint8_t* head, int d, bool keys) {
  SpectralHead out;
  constexpr int kWidths[5] = {0, 1, 2, 4, 8};
  const size_t norms = static_cast<size_t>(3 * d / 8), steps = norms + 128, lows = steps + d,
               codes = (lows + d + 63) / 64 * 64;
  for (int c = 0; c < d; ++c) {
    int of_class = 0;
    for (int i = 0; i < 3; ++i) of_class += ((head[i * d / 8 + c / 8] >> (c % 8)) & 1) << i;
    out.width.push_back(kWidths[of_class]);
    out.step.push_back(std::exp2((head[steps + c] - 160) / 8.0));
    const double unit = of_class == 0 || of_class == 4 ? 1.0 : of_class == 3 ? 0.25 : 0.125;
    out.low.push_back(static_cast<int8_t>(head[lows + c]) * unit * out.step.back());
  }
  for (int t = 0; t < 128; ++t) out.norm.push_back(std::exp2((head[norms + t] - 128) / 8.0));
  out.code.assign(static_cast<size_t>(128) * d, 0);
  // Digits in the order of the format: width looked for, the digit's bits, its weight.
  struct Group {
    int width, bits, weight;
  };
  const std::vector<std::vector<Group>> planes = {{{8, 4, 16}, {4, 4, 1}, {8, 4, 1}}, {{2, 2, 1}}, {{1, 1, 1}}};
  size_t at = codes;
  for (const auto& plane : planes) {
    std::vector<std::pair<int, int>> columns;  // channel, weight
    for (const Group& group : plane) {
      for (int c = 0; c < d; ++c) {
        if (out.width[c] == group.width) columns.push_back({c, group.weight});
      }
    }
    const int bits = plane[0].bits, per_byte = 8 / bits;
    const auto count = static_cast<int>(columns.size());
    for (int i = 0; i < count; ++i) {
      for (int t = 0; t < 128; ++t) {
        size_t byte;
        int bit;
        if (keys) {
          const int tokens = 16 * per_byte;
          byte = static_cast<size_t>((t / tokens) * (count / 4) + i / 4) * 64 + (t % 16) * 4 + i % 4;
          bit = (t % tokens) / 16 * bits;
        } else {
          const int tokens = 4 * per_byte;
          byte = static_cast<size_t>((i / 8) * (128 / tokens) + t / tokens) * 32 + (i % 8) * 4 + t % 4;
          bit = (t % tokens) / 4 * bits;
        }
        const int digit = (head[at + byte] >> bit) & ((1 << bits) - 1);
        out.code[static_cast<size_t>(t) * d + columns[i].first] += digit * columns[i].second;
      }
    }
    at += static_cast<size_t>(count) * 128 * bits / 8;
  }
  for (int t = 0; t < 128; ++t) {
    for (int c = 0; c < d; ++c) {
      out.coefficients.push_back(out.low[c] + out.step[c] * out.code[static_cast<size_t>(t) * d + c]);
    }
  }
  return out;
}

}  // namespace reference
