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

// Random numbers as training draws them: SplitMix64 of the seed, then of the result xor each of three counters in turn,
// and 53 bits of it as a number in (0, 1).
inline double counted_random(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  const auto mixed = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  uint64_t x = mixed(seed);
  for (const uint64_t counter : {a, b, c}) x = mixed(x ^ counter);
  return std::ldexp(static_cast<double>(x >> 11) + 0.5, -53);
}

// The training of an encoder and its codebook, with every derivative written out by index.
struct EncoderTraining {
  using Row = std::vector<double>;
  int width, hidden, codes, batch, steps;
  uint64_t seed;
  double rate, decay;
  std::vector<float> rows;  // [tokens][width]
  // Parameters: norm weight and bias, first weight and bias, second weight and bias, codebook.
  Row scale, values[7], first[7], second[7];

  void start(const std::vector<float>& codebook) {
    const size_t w = width, h = hidden, n = codes, tokens = rows.size() / w;
    const size_t sizes[7] = {w, w, h * w, h, 2 * n * h, 2 * n, n * w};
    for (int p = 0; p < 7; ++p) {
      values[p].assign(sizes[p], p == 0 ? 1.0 : 0.0);
      first[p].assign(sizes[p], 0.0);
      second[p].assign(sizes[p], 0.0);
    }
    scale.assign(w, 0.0);
    for (size_t i = 0; i < rows.size(); ++i) scale[i % w] += std::fabs(rows[i]) / tokens;
    for (size_t i = 0; i < h * w; ++i) values[2][i] = (2 * counted_random(seed, 2, 0, i) - 1) / std::sqrt(1.0 * w);
    for (size_t i = 0; i < 2 * n * h; ++i) values[4][i] = (2 * counted_random(seed, 3, 0, i) - 1) / std::sqrt(1.0 * h);
    values[6].assign(codebook.begin(), codebook.end());
  }

  // Step `step` counts from 0. Returns the error of the batch.
  double run(int step) {
    const size_t w = width, h = hidden, n = codes, tokens = rows.size() / w;
    Row slopes[7];
    for (int p = 0; p < 7; ++p) slopes[p].assign(values[p].size(), 0.0);
    double mean_square = 0.0, error = 0.0;
    for (const float x : rows) mean_square += 1.0 * x * x / rows.size();
    for (int t = 0; t < batch; ++t) {
      const float* row = rows.data() + w * static_cast<size_t>(counted_random(seed, 0, step, t) * tokens);
      double square = 0.0;
      for (size_t c = 0; c < w; ++c) square += 1.0 * row[c] * row[c] / w;
      Encoder standard = {width, hidden, codes, {scale.begin(), scale.end()}, {}, {}, {}, {}, {}, {}};
      const Row x = standard.standardised(row);
      Row input(w), before(h), middle(h), y(2 * n), share(2 * n), bits(n), sums(w), bit_slope(n), logit_slope(2 * n);
      for (size_t c = 0; c < w; ++c) input[c] = x[c] * values[0][c] + values[1][c];
      for (size_t i = 0; i < h; ++i) {
        before[i] = values[3][i];
        for (size_t c = 0; c < w; ++c) before[i] += values[2][i * w + c] * input[c];
        middle[i] = before[i] * 0.5 * std::erfc(-before[i] / std::sqrt(2.0));
      }
      for (size_t i = 0; i < 2 * n; ++i) {
        y[i] = values[5][i] - std::log(-std::log(counted_random(seed, 1, step, t * 2 * n + i)));
        for (size_t k = 0; k < h; ++k) y[i] += values[4][i * h + k] * middle[k];
      }
      for (size_t pair = 0; pair < n / 2; ++pair) {
        size_t chosen = 0;
        double total = 0.0;
        for (size_t i = 0; i < 4; ++i) {
          chosen = y[4 * pair + i] > y[4 * pair + chosen] ? i : chosen;
          total += std::exp(y[4 * pair + i]);
        }
        for (size_t i = 0; i < 4; ++i) share[4 * pair + i] = std::exp(y[4 * pair + i]) / total;
        for (size_t i = 0; i < 2; ++i) bits[2 * pair + i] = kClassBits[chosen][i];
      }
      for (size_t c = 0; c < w; ++c) {
        for (size_t i = 0; i < n; ++i) sums[c] += bits[i] * values[6][i * w + c];
        const double difference = sums[c] - row[c] / std::sqrt(square);
        error += square * difference * difference / (batch * w);
        const double slope = 2 * square / mean_square * difference / (batch * w);
        for (size_t i = 0; i < n; ++i) {
          slopes[6][i * w + c] += bits[i] * slope;
          bit_slope[i] += values[6][i * w + c] * slope;
        }
      }
      for (size_t i = 0; i < 2 * n; ++i) {
        for (size_t k = 0; k < 4; ++k) {
          // d share_k / d y_i = share_k ((k is i) - share_i), of the same four.
          const size_t other = i / 4 * 4 + k;
          const double by_share = kClassBits[k][0] * bit_slope[i / 4 * 2] + kClassBits[k][1] * bit_slope[i / 4 * 2 + 1];
          logit_slope[i] += by_share * share[other] * ((other == i) - share[i]);
        }
        slopes[5][i] += logit_slope[i];
        for (size_t k = 0; k < h; ++k) slopes[4][i * h + k] += logit_slope[i] * middle[k];
      }
      for (size_t k = 0; k < h; ++k) {
        double slope = 0.0;
        for (size_t i = 0; i < 2 * n; ++i) slope += logit_slope[i] * values[4][i * h + k];
        const double z = before[k];
        slope *= 0.5 * std::erfc(-z / std::sqrt(2.0)) + z * std::exp(-z * z / 2) / std::sqrt(2 * std::acos(-1.0));
        slopes[3][k] += slope;
        for (size_t c = 0; c < w; ++c) {
          slopes[2][k * w + c] += slope * input[c];
          slopes[1][c] += slope * values[2][k * w + c];
          slopes[0][c] += slope * values[2][k * w + c] * x[c];
        }
      }
    }
    update(step, slopes);
    return error;
  }

  // AdamW after clipping to length 1, with a linear rise over a twentieth of the steps and a cosine after it.
  void update(int step, const Row (&slopes)[7]) {
    double square = 0.0;
    for (const Row& slope : slopes) {
      for (const double g : slope) square += g * g;
    }
    const double warm = std::max(1.0, steps / 20.0);
    const double now = step < warm
                           ? rate * (step + 1) / warm
                           : rate * (1 + std::cos(std::acos(-1.0) * (step - warm) / std::max(1.0, steps - warm))) / 2;
    for (int p = 0; p < 7; ++p) {
      for (size_t i = 0; i < values[p].size(); ++i) {
        const double g = slopes[p][i] * std::min(1.0, 1 / std::sqrt(square));
        first[p][i] = 0.9 * first[p][i] + 0.1 * g;
        second[p][i] = 0.95 * second[p][i] + 0.05 * g * g;
        if (p == 2 || p == 4) values[p][i] -= now * decay * values[p][i];
        values[p][i] -= now * (first[p][i] / (1 - std::pow(0.9, step + 1))) /
                        (std::sqrt(second[p][i] / (1 - std::pow(0.95, step + 1))) + 1e-8);
      }
    }
  }
};

}  // namespace reference
