#include "commvq/seal_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <sstream>

#include "codecs/commvq/page_models.h"
#include "kvasir/types.h"
#include "reference/half.h"

namespace commvq_seal {
namespace {

using reference::Complex;
using reference::ComplexRow;

const double kUnit = std::ldexp(1.0, -24);  // of a float32 rounding, relative

float half_number(double x) { return static_cast<float>(reference::half_value(reference::half_nearest(x))); }

// What a judge says: all of it as text.
template <class... Words>
std::string said(const Words&... words) {
  std::ostringstream text;
  (text << ... << words);
  return text.str();
}

double half_at(const std::vector<uint8_t>& bytes, size_t at) {
  uint16_t bits;
  std::memcpy(&bits, bytes.data() + at, 2);
  return reference::half_value(bits);
}

double length(const ComplexRow& x) { return std::sqrt(reference::squared_distance(x, ComplexRow(x.size()))); }

// All of a part's centres in double: how far they are from x, and how long the longest vector is.
struct Centres {
  std::vector<ComplexRow> table;
  double longest = 0.0;

  Centres(const float* planar, int entries, int head_dim) : table(reference::complex_table(planar, entries, head_dim)) {
    for (const ComplexRow& z : table) longest = std::max(longest, length(z));
  }
  double distance(const ComplexRow& x, int a, int b) const {
    return reference::squared_distance(x, reference::centre(table, a, b));
  }
  // The least over all, by products: |x|^2 - 2 <x, z_a> - 2 <x, i z_b> + |z_a + i z_b|^2.
  double least(const ComplexRow& x) const {
    const size_t entries = table.size();
    std::vector<double> of_a, of_b, squares;
    for (const ComplexRow& z : table) {
      double a = 0.0, b = 0.0, square = 0.0;
      for (size_t j = 0; j < x.size(); ++j) {
        a += (std::conj(x[j]) * z[j]).real();
        b += (std::conj(x[j]) * Complex(0, 1) * z[j]).real();
        square += std::norm(z[j]);
      }
      of_a.push_back(a);
      of_b.push_back(b);
      squares.push_back(square);
    }
    if (mixed.empty()) {
      for (const ComplexRow& first : table) {
        for (const ComplexRow& second : table) {
          double product = 0.0;
          for (size_t j = 0; j < x.size(); ++j) product += (std::conj(first[j]) * Complex(0, 1) * second[j]).real();
          mixed.push_back(product);
        }
      }
    }
    double best = 1e300;
    for (size_t a = 0; a < entries; ++a) {
      for (size_t b = 0; b < entries; ++b) {
        best = std::min(best, squares[a] + squares[b] + 2 * mixed[a * entries + b] - 2 * of_a[a] - 2 * of_b[b]);
      }
    }
    return best + std::pow(length(x), 2);
  }
  mutable std::vector<double> mixed;
};

}  // namespace

std::string Setting::describe() const {
  std::ostringstream text;
  text << "kv=" << kv_heads << " d=" << head_dim << " pairs=" << static_cast<int>(pairs) << " stages=" << stages << "x"
       << entries << " refinements=" << refinements << " codes=" << codes << " hidden=" << hidden << " flips=" << flips
       << " pages=" << pages << (equal ? " equal" : "");
  return text.str();
}

Scene::Scene(const Setting& s) : setting(s) {
  std::mt19937 random(static_cast<unsigned>(s.head_dim * 131 + s.codes + s.entries));
  std::normal_distribution<double> normal;
  const size_t d = s.head_dim, width = s.width();
  double power = 0.0;
  for (int r = 0; r < s.stages; ++r) power += 2 * std::pow(0.8, 2 * r);
  for (int i = 0; i < s.kv_heads * s.stages; ++i) {
    const size_t first = key_tables_.size(), half = s.entries * d / 2;
    for (size_t j = 0; j < s.entries * d; ++j) {
      const bool again = s.equal && j >= half;
      const double x =
          again ? key_tables_[first + j - half] : normal(random) * std::pow(0.8, i % s.stages) / std::sqrt(power);
      key_tables_.push_back(half_number(x));
    }
    // Every other copy is off by one float16 step of a small number: what rounding makes of that decides.
    for (size_t e = 0; s.equal && e < s.entries / 2u; e += 2) {
      key_tables_[first + e * d + e % d] = half_number(std::ldexp(1.0, -10));
      key_tables_[first + half + e * d + e % d] = half_number(std::ldexp(1.0, -10) + std::ldexp(1.0, -20));
    }
  }
  for (size_t n = 0; n < static_cast<size_t>(s.codes); ++n) {
    for (size_t c = 0; c < width; ++c) {
      const bool again = s.equal && n % 2 == 1;
      const double x = again ? value_table_[(n - 1) * width + c] : normal(random) * std::sqrt(2.0 / s.codes);
      value_table_.push_back(half_number(x));
    }
  }
  std::vector<float> thresholds;
  for (int n = 0; n < s.codes; ++n) thresholds.push_back(n % 5 == 3 ? 0.9f : n % 31 == 7 ? -65504.0f : 0.5f);
  key_codebook.reset(
      kvasir::KeyCodebook::create(s.kv_heads, s.head_dim, s.pairs, s.stages, s.entries, key_tables_.data()));
  value_codebook.reset(
      kvasir::ValueCodebook::create(s.width(), s.codes, value_table_.data(), s.equal ? nullptr : thresholds.data()));
  make_rows();
  if (s.hidden > 0) make_encoder();
  models[0] = kvasir::commvq::make_key_model(*key_codebook, s.refinements);
  models[1] = kvasir::commvq::make_value_model(*value_codebook, encoder.get(), s.flips, s.kv_heads, s.head_dim);
}

// Ordinary tokens of very different sizes; among them one of zeros, of subnormals, of the largest numbers there are,
// of one number alone, and one that is exactly what the codebooks can say.
void Scene::make_rows() {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  const size_t width = setting.width();
  for (int side = 0; side < 2; ++side) {
    for (int64_t t = 0; t < tokens(); ++t) {
      const double size = std::exp(1.5 * normal(random));
      for (size_t c = 0; c < width; ++c) {
        double x = normal(random) * size * (c % 29 == 3 ? 5.0 : 1.0);
        if (t % 128 == 5) x = 0.0;
        if (t % 128 == 6) x = std::ldexp(static_cast<double>(c % 3) - 1.0, -24);
        if (t % 128 == 7) x = (c % 2 == 0 ? 1.0 : -1.0) * kvasir::kMaxMagnitude;
        if (t % 128 == 8) x = c == 17 ? 3.0 : 0.0;
        if (t % 128 == 9) x = side == 1 ? value_table_[c] : x;
        rows[side].push_back(half_number(std::clamp(x, -1.0 * kvasir::kMaxMagnitude, 1.0 * kvasir::kMaxMagnitude)));
      }
    }
  }
}

void Scene::make_encoder() {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  const size_t width = setting.width(), hidden = setting.hidden, logits = 2 * setting.codes;
  const auto numbers = [&](size_t count, double size, float mean) {
    std::vector<float> list;
    for (size_t i = 0; i < count; ++i) list.push_back(mean + static_cast<float>(size) * normal(random));
    return list;
  };
  network_ = {setting.width(), setting.hidden, setting.codes, {}, {}, {}, {}, {}, {}, {}};
  for (size_t c = 0; c < width; ++c) network_.scale.push_back(0.5f + static_cast<float>(c % 7));
  network_.norm_weight = numbers(width, 0.2, 1.0f);
  network_.norm_bias = numbers(width, 0.1, 0.0f);
  network_.first_weight = numbers(hidden * width, 1.0 / std::sqrt(width), 0.0f);
  network_.first_bias = numbers(hidden, 0.1, 0.0f);
  network_.second_weight = numbers(logits * hidden, 1.0 / std::sqrt(hidden), 0.0f);
  network_.second_bias = numbers(logits, 0.1, 0.0f);
  encoder.reset(kvasir::ValueEncoder::create(setting.width(), setting.hidden, setting.codes, network_.scale.data(),
                                             network_.norm_weight.data(), network_.norm_bias.data(),
                                             network_.first_weight.data(), network_.first_bias.data(),
                                             network_.second_weight.data(), network_.second_bias.data()));
}

const float* Scene::row(int side, int page, int token) const {
  return rows[side].data() + (static_cast<size_t>(page) * 128 + token) * setting.width();
}

std::vector<uint8_t> Scene::host_part(int side, int page) const {
  std::vector<uint8_t> bytes(side == 0 ? keys().page.bytes() : values().page.bytes(), 0xa5);
  models[side]->encode(row(side, page, 0), bytes.data());
  return bytes;
}

ComplexRow Scene::normal_key(int page, int token, int head, double norm) const {
  ComplexRow x = reference::complex_row(row(0, page, token) + static_cast<size_t>(head) * setting.head_dim,
                                        setting.head_dim, setting.pairs == kvasir::RopePairs::kHalves);
  for (Complex& e : x) e /= norm == 0.0 ? 1.0 : norm;
  return x;
}

std::string Scene::judge_keys(int page, const std::vector<uint8_t>& part) const {
  const Setting& s = setting;
  const size_t used = 256 + static_cast<size_t>(s.kv_heads) * s.stages * 128 * 2 * keys().page.index_bits / 8;
  if (part.size() != (used + 63) / 64 * 64) return said(part.size(), " bytes");
  for (size_t i = used; i < part.size(); ++i) {
    if (part[i] != 0) return said("padding ", int{part[i]}, " at ", i);
  }
  for (int t = 0; t < 128; ++t) {
    double square = 0.0;
    for (int c = 0; c < s.width(); ++c) square += std::pow(double{row(0, page, t)[c]}, 2) / s.width();
    const double exact = std::sqrt(square), norm = half_at(part, 2 * t);
    // Rounded to float32 on its way.
    if (!(std::fabs(norm - exact) <= reference::half_spacing(exact) / 2 + exact * kUnit)) {
      return said("token ", t, ": norm ", norm, ", not ", exact);
    }
  }
  for (int head = 0; head < s.kv_heads; ++head) {
    std::vector<Centres> stages;
    for (int r = 0; r < s.stages; ++r) {
      const size_t first = (static_cast<size_t>(head) * s.stages + r) * s.entries * s.head_dim;
      stages.emplace_back(key_tables_.data() + first, s.entries, s.head_dim);
    }
    for (int t = 0; t < 128; ++t) {
      const ComplexRow x = normal_key(page, t, head, half_at(part, 2 * t));
      // What the stages before leave over; of a refined key, what all others do.
      ComplexRow rest = x;
      double longest = length(x);
      for (const Centres& stage : stages) longest += 2 * stage.longest;
      for (int r = 0; r < s.stages; ++r) {
        const auto code = reference::key_code(part.data() + 256, s.kv_heads, s.stages, s.entries, t, head, r);
        if (s.refinements == 0 || r + 1 == s.stages) {
          // A float32 sum of d products is off by d units of |x| |z|; there are two of them, doubled, and three more
          // roundings of what they add up to. The row itself has been rounded each time that it changed.
          const double z = stages[r].longest, size = length(rest);
          const double scores = 4 * s.head_dim * size * z + 3 * (4 * z * z + 4 * size * z);
          const double changes = 4 * z * longest * (s.stages * (2 * s.refinements + 1) + 1);
          const double most = 2 * kUnit * (scores + changes);
          const double got = stages[r].distance(rest, code.a, code.b), least = stages[r].least(rest);
          if (!(got <= least + most)) {
            return said("token ", t, " head ", head, " stage ", r, ": distance ", got, ", not ", least);
          }
        }
        const ComplexRow centre = reference::centre(stages[r].table, code.a, code.b);
        for (size_t j = 0; j < rest.size(); ++j) rest[j] -= centre[j];
      }
    }
  }
  return "";
}

double Scene::key_error(int page, const std::vector<uint8_t>& part) const {
  const Setting& s = setting;
  double error = 0.0;
  for (int head = 0; head < s.kv_heads; ++head) {
    const float* tables = key_tables_.data() + static_cast<size_t>(head) * s.stages * s.entries * s.head_dim;
    std::vector<std::vector<ComplexRow>> stages;
    for (int r = 0; r < s.stages; ++r) {
      stages.push_back(
          reference::complex_table(tables + static_cast<size_t>(r) * s.entries * s.head_dim, s.entries, s.head_dim));
    }
    for (int t = 0; t < 128; ++t) {
      ComplexRow rest = normal_key(page, t, head, half_at(part, 2 * t));
      for (int r = 0; r < s.stages; ++r) {
        const auto code = reference::key_code(part.data() + 256, s.kv_heads, s.stages, s.entries, t, head, r);
        const ComplexRow centre = reference::centre(stages[r], code.a, code.b);
        for (size_t j = 0; j < rest.size(); ++j) rest[j] -= centre[j];
      }
      error += std::pow(length(rest), 2);
    }
  }
  return error;
}

namespace {

// The bits of one token, each in the plane of docs/format.md that has it.
std::vector<int> bits_of(const std::vector<uint8_t>& part, int codes, int token) {
  std::vector<int> bits;
  for (int n = 0; n < codes; ++n) {
    const size_t vector = static_cast<size_t>(n / 16) * 4 + token / 32;
    bits.push_back(part[256 + 64 * vector + 4 * (n % 16) + token % 4] >> (token % 32 / 4) & 1);
  }
  return bits;
}

std::vector<double> sum_of(const std::vector<int>& bits, const std::vector<float>& table, size_t width) {
  std::vector<double> sum(width, 0.0);
  for (size_t n = 0; n < bits.size(); ++n) {
    for (size_t c = 0; bits[n] != 0 && c < width; ++c) sum[c] += table[n * width + c];
  }
  return sum;
}

}  // namespace

std::string Scene::judge_values(int page, const std::vector<uint8_t>& part) const {
  const size_t width = setting.width();
  if (part.size() != 256 + 16 * static_cast<size_t>(setting.codes)) return said(part.size(), " bytes");
  for (int t = 0; t < 128; ++t) {
    const float* x = row(1, page, t);
    const std::vector<int> bits = bits_of(part, setting.codes, t);
    const std::vector<double> sum = sum_of(bits, value_table_, width);
    double product = 0.0, square = 0.0, off = 0.0, x_square = 0.0;
    for (size_t c = 0; c < width; ++c) {
      double magnitudes = 0.0;
      for (int n = 0; n < setting.codes; ++n) {
        magnitudes += bits[n] * std::fabs(double{value_table_[static_cast<size_t>(n) * width + c]});
      }
      product += x[c] * sum[c];
      square += sum[c] * sum[c];
      x_square += double{x[c]} * x[c];
      off += std::pow(setting.codes * kUnit * magnitudes, 2);  // of a sum in float32
    }
    const double gain = square > 0.0 ? std::clamp(product / square, -65504.0, 65504.0) : 0.0;
    const double slack =
        square > 0.0 ? std::sqrt(off) * (std::sqrt(x_square) / square + 2 * std::fabs(gain) / std::sqrt(square)) : 0.0;
    const double most = reference::half_spacing(gain) / 2 + std::fabs(gain) * kUnit + 2 * slack;
    std::string complaint;
    if (setting.hidden == 0) complaint = judge_descent(x, bits, sum);
    if (setting.hidden > 0 && setting.flips == 0) complaint = judge_network(x, bits);
    if (!(std::fabs(half_at(part, 2 * t) - gain) <= most))
      complaint = said("gain ", half_at(part, 2 * t), ", not ", gain);
    if (!complaint.empty()) return said("token ", t, ": ", complaint);
  }
  return "";
}

// No flip lowers the error by more than what rounding hides.
std::string Scene::judge_descent(const float* x, const std::vector<int>& bits, const std::vector<double>& sum) const {
  const size_t width = setting.width();
  double square = 0.0, all = 0.0;
  for (size_t c = 0; c < width; ++c) square += double{x[c]} * x[c] / width;
  const double norm = square > 0.0 ? std::sqrt(square) : 1.0;
  std::vector<double> own;
  for (size_t n = 0; n < bits.size(); ++n) {
    own.push_back(0.0);
    for (size_t c = 0; c < width; ++c) own[n] += std::pow(double{value_table_[n * width + c]}, 2);
    all += std::sqrt(own[n]);
  }
  for (size_t n = 0; n < bits.size(); ++n) {
    double slope = 0.0;
    for (size_t c = 0; c < width; ++c) slope += (sum[c] - x[c] / norm) * value_table_[n * width + c];
    const double change = own[n] + 2 * (bits[n] != 0 ? -1 : 1) * slope;
    // A slope is a sum of `width` products, and then of products of rows: at most twice as many as there are bits, and
    // as many more. It is never above |row| (|x| + sum of all |rows|).
    const double size = std::sqrt(own[n]) * (std::sqrt(1.0 * width) + all);
    const double hidden = 1e-6 * own[n] + 4 * kUnit * (width + 4.0 * bits.size()) * size;
    if (!(change >= -hidden)) return said("flipping bit ", n, " would change the error by ", change, " of ", own[n]);
  }
  return "";
}

// Each class has the largest of its logits, up to what float32 makes of them.
std::string Scene::judge_network(const float* x, const std::vector<int>& bits) const {
  const size_t width = setting.width(), hidden = setting.hidden;
  const std::vector<double> logits = network_.logits(x), input = network_.standardised(x);
  std::vector<double> middle, middle_off;
  for (size_t h = 0; h < hidden; ++h) {
    double sum = network_.first_bias[h], magnitudes = std::fabs(sum);
    for (size_t c = 0; c < width; ++c) {
      const double term = input[c] * network_.norm_weight[c] * network_.first_weight[h * width + c];
      const double bias = double{network_.norm_bias[c]} * network_.first_weight[h * width + c];
      sum += term + bias;
      magnitudes += std::fabs(term) + std::fabs(bias);
    }
    middle.push_back(sum * 0.5 * std::erfc(-sum / std::sqrt(2.0)));
    // gelu is never steeper than 1.13, and takes five roundings.
    middle_off.push_back(kUnit * (1.13 * (width + 6.0) * magnitudes + 5 * (1 + std::fabs(sum))));
  }
  for (size_t pair = 0; pair < bits.size() / 2; ++pair) {
    double got = 0.0, most = -1e300, off = 0.0;
    for (size_t i = 4 * pair; i < 4 * pair + 4; ++i) {
      double own = kUnit * std::fabs(network_.second_bias[i]);
      for (size_t h = 0; h < hidden; ++h) {
        const double weight = std::fabs(double{network_.second_weight[i * hidden + h]});
        own += weight * (middle_off[h] + kUnit * (hidden + 2.0) * std::fabs(middle[h]));
      }
      off = std::max(off, own);
      most = std::max(most, logits[i]);
      const int* wanted = reference::kClassBits[i % 4];
      if (bits[2 * pair] == wanted[0] && bits[2 * pair + 1] == wanted[1]) got = logits[i];
    }
    if (!(got >= most - 2 * off)) return said("pair ", pair, " has a logit of ", got, ", not ", most);
  }
  return "";
}

double Scene::value_error(int page, const std::vector<uint8_t>& part) const {
  const size_t width = setting.width();
  double error = 0.0;
  for (int t = 0; t < 128; ++t) {
    const float* x = row(1, page, t);
    const std::vector<double> sum = sum_of(bits_of(part, setting.codes, t), value_table_, width);
    double square = 0.0, wrong = 0.0;
    for (size_t c = 0; c < width; ++c) {
      wrong += std::pow(half_at(part, 2 * t) * sum[c] - x[c], 2);
      square += double{x[c]} * x[c] / width;
    }
    error += square > 0.0 ? wrong / square : wrong;  // tokens of all sizes count alike
  }
  return error;
}

}  // namespace commvq_seal
