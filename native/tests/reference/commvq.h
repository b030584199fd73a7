// CommVQ by its definitions, in double precision: centres as dense vectors, codes bit by bit, the fit of a table by the
// paper's matrix T.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace reference {

using Complex = std::complex<double>;
using ComplexRow = std::vector<Complex>;

// A table of one stage: [entries][head_dim / 2] complex numbers from planar rows.
inline std::vector<ComplexRow> complex_table(const float* planar, int entries, int head_dim) {
  std::vector<ComplexRow> table;
  for (int e = 0; e < entries; ++e, planar += head_dim) {
    ComplexRow row;
    for (int j = 0; j < head_dim / 2; ++j) row.emplace_back(planar[j], planar[head_dim / 2 + j]);
    table.push_back(row);
  }
  return table;
}

// The complex form of a head's channels.
inline ComplexRow complex_row(const float* row, int head_dim, bool halves) {
  ComplexRow result;
  for (int j = 0; j < head_dim / 2; ++j) {
    result.emplace_back(row[halves ? j : 2 * j], row[halves ? j + head_dim / 2 : 2 * j + 1]);
  }
  return result;
}

inline ComplexRow centre(const std::vector<ComplexRow>& table, int a, int b) {
  ComplexRow result;
  for (size_t j = 0; j < table[a].size(); ++j) result.push_back(table[a][j] + Complex(0, 1) * table[b][j]);
  return result;
}

inline double squared_distance(const ComplexRow& x, const ComplexRow& y) {
  double sum = 0.0;
  for (size_t j = 0; j < x.size(); ++j) sum += std::norm(x[j] - y[j]);
  return sum;
}

// `count` bits from bit `first` on, lowest bit of the first byte first.
inline int bits_at(const uint8_t* bytes, size_t first, int count) {
  int value = 0;
  for (int i = 0; i < count; ++i) value |= (bytes[(first + i) / 8] >> ((first + i) % 8) & 1) << i;
  return value;
}

struct KeyCode {
  int a, b;
};

// The code of a token in the packed codes of one layer.
inline KeyCode key_code(const uint8_t* codes, int kv_heads, int stages, int entries, int64_t token, int head,
                        int stage) {
  const int bits = static_cast<int>(std::lround(std::log2(entries)));
  const size_t stage_bytes = static_cast<size_t>(128) * 2 * bits / 8;
  const size_t part = (static_cast<size_t>(token / 128) * kv_heads + head) * stages + stage;
  const size_t first = static_cast<size_t>(token % 128) * 2 * bits;
  return {bits_at(codes + part * stage_bytes, first, bits), bits_at(codes + part * stage_bytes, first + bits, bits)};
}

// Solves a dense real system by elimination with pivots. matrix: [n][n], rhs: [n][m].
inline std::vector<std::vector<double>> solve(std::vector<std::vector<double>> matrix,
                                              std::vector<std::vector<double>> rhs) {
  const size_t n = matrix.size();
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k + 1; i < n; ++i) pivot = std::fabs(matrix[i][k]) > std::fabs(matrix[pivot][k]) ? i : pivot;
    std::swap(matrix[k], matrix[pivot]);
    std::swap(rhs[k], rhs[pivot]);
    for (size_t i = 0; i < n; ++i) {
      if (i == k) continue;
      const double factor = matrix[i][k] / matrix[k][k];
      for (size_t j = k; j < n; ++j) matrix[i][j] -= factor * matrix[k][j];
      for (size_t c = 0; c < rhs[i].size(); ++c) rhs[i][c] -= factor * rhs[k][c];
    }
  }
  for (size_t k = 0; k < n; ++k) {
    for (double& x : rhs[k]) x /= matrix[k][k];
  }
  return rhs;
}

// softmax over all centres of -distance / temperature. [points][entries * entries]
inline std::vector<std::vector<double>> soft_assignment(const std::vector<ComplexRow>& points,
                                                        const std::vector<ComplexRow>& table, double temperature) {
  std::vector<std::vector<double>> weights;
  const int entries = static_cast<int>(table.size());
  for (const ComplexRow& x : points) {
    std::vector<double> row;
    double least = 1e300, sum = 0.0;
    for (int a = 0; a < entries; ++a) {
      for (int b = 0; b < entries; ++b) {
        row.push_back(std::sqrt(squared_distance(x, centre(table, a, b))));
        least = std::min(least, row.back());
      }
    }
    for (double& w : row) sum += w = std::exp((least - w) / temperature);
    for (double& w : row) w /= sum;
    weights.push_back(row);
  }
  return weights;
}

// phi = (T^t S T)^-1 T^t S m of the paper (equations 28-33): for each pair of channels, the 2 * entries real numbers
// x_l, y_l of its table. m are the weighted means of the points of each centre, S their weights.
inline std::vector<ComplexRow> fit_table(const std::vector<ComplexRow>& points,
                                         const std::vector<std::vector<double>>& weights, int entries) {
  const size_t half = points[0].size(), centres = static_cast<size_t>(entries) * entries;
  std::vector<double> mass(centres, 0.0);
  std::vector<ComplexRow> sums(centres, ComplexRow(half));
  for (size_t n = 0; n < points.size(); ++n) {
    for (size_t c = 0; c < centres; ++c) {
      mass[c] += weights[n][c];
      for (size_t j = 0; j < half; ++j) sums[c][j] += weights[n][c] * points[n][j];
    }
  }
  // A row of T has two entries that are not 0: x_a - y_b for the real part and y_a + x_b for the imaginary part.
  const size_t unknowns = 2 * static_cast<size_t>(entries);
  std::vector<std::vector<double>> matrix(unknowns, std::vector<double>(unknowns, 0.0));
  std::vector<std::vector<double>> rhs(unknowns, std::vector<double>(half, 0.0));
  for (int a = 0; a < entries; ++a) {
    for (int b = 0; b < entries; ++b) {
      const size_t c = static_cast<size_t>(a) * entries + b;
      const size_t xa = 2 * a, ya = 2 * a + 1, xb = 2 * b, yb = 2 * b + 1;
      std::vector<double> re(unknowns, 0.0), im(unknowns, 0.0);
      re[xa] += 1.0, re[yb] -= 1.0;
      im[ya] += 1.0, im[xb] += 1.0;
      // The four may be two.
      std::vector<size_t> used = {xa, ya};
      if (a != b) used.insert(used.end(), {xb, yb});
      for (const size_t i : used) {
        for (const size_t k : used) matrix[i][k] += mass[c] * (re[i] * re[k] + im[i] * im[k]);
        for (size_t j = 0; j < half; ++j) rhs[i][j] += re[i] * sums[c][j].real() + im[i] * sums[c][j].imag();
      }
    }
  }
  const auto phi = solve(matrix, rhs);
  std::vector<ComplexRow> table(entries, ComplexRow(half));
  for (int l = 0; l < entries; ++l) {
    for (size_t j = 0; j < half; ++j) table[l][j] = {phi[2 * l][j], phi[2 * l + 1][j]};
  }
  return table;
}

// The value encoder, one number at a time.
struct Encoder {
  int width, hidden, codes;
  std::vector<float> scale, norm_weight, norm_bias, first_weight, first_bias, second_weight, second_bias;

  // [width]: mean 0 and variance 1, before norm_weight and norm_bias.
  std::vector<double> standardised(const float* row) const {
    std::vector<double> x;
    double square = 0.0, mean = 0.0, variance = 0.0;
    for (int c = 0; c < width; ++c) {
      x.push_back(1.0 * row[c] / scale[c]);
      square += x[c] * x[c];
    }
    for (double& e : x) e = square > 0.0 ? e / std::sqrt(square) : 0.0;
    for (const double e : x) mean += e / width;
    for (const double e : x) variance += (e - mean) * (e - mean) / width;
    for (double& e : x) e = (e - mean) / std::sqrt(variance + 1e-5);
    return x;
  }
  std::vector<double> logits(const float* row) const {
    std::vector<double> x = standardised(row), middle, result;
    for (int c = 0; c < width; ++c) x[c] = x[c] * norm_weight[c] + norm_bias[c];
    for (int h = 0; h < hidden; ++h) {
      double sum = first_bias[h];
      for (int c = 0; c < width; ++c) sum += x[c] * first_weight[static_cast<size_t>(h) * width + c];
      middle.push_back(sum * 0.5 * std::erfc(-sum / std::sqrt(2.0)));
    }
    for (int i = 0; i < 2 * codes; ++i) {
      double sum = second_bias[i];
      for (int h = 0; h < hidden; ++h) sum += middle[h] * second_weight[static_cast<size_t>(i) * hidden + h];
      result.push_back(sum);
    }
    return result;
  }
};

// The bits of the classes of four logits.
constexpr int kClassBits[4][2] = {{1, 0}, {0, 1}, {1, 1}, {0, 0}};

}  // namespace reference
