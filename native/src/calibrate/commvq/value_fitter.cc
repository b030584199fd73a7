// Value codebooks by alternating least squares.
//
// Minimised: sum over tokens of |v - g s C|^2, in the units of the values, over bits s, gains g and the codebook C.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/checks.h"
#include "base/half.h"
#include "base/thread_pool.h"
#include "calibrate/commvq/linear.h"
#include "calibrate/commvq/whole_steps.h"
#include "codecs/commvq/products.h"
#include "codecs/commvq/value_codebook.h"
#include "kernels/kernels.h"
#include "kvasir/commvq_training.h"

namespace kvasir {
namespace {

using commvq::bit_at;

constexpr int64_t kLeastTokens = 16;
// Tokens whose products are summed in float32 before they join sums in double.
constexpr int64_t kSumTokens = 4096;
// A step that gains less than this share of the error is the last.
constexpr double kStill = 1e-4;
// How strongly a row is held where it is, in units of the mean weight of a row: rows that few tokens use should not be
// bent to fit those alone.
constexpr double kHold = 1e-3;

// A normal variable with variance 1, quantised uniformly with b bits and the best step: that step, and the mean
// squared error (Max, 1960); from 5 bits on, about a quarter for each bit more.
constexpr int kMostBits = 8;
constexpr double kSteps[kMostBits + 1] = {0, 1.596, 0.9957, 0.586, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308};
constexpr double kErrors[kMostBits + 1] = {1.0,     0.3634,  0.1188,   0.03744,  0.01154,
                                           0.00349, 0.00104, 0.000304, 0.0000877};

}  // namespace

struct ValueFitter::Impl {
  const CodebookKernels& kernels = resolve_codebooks(backend_index("auto"));
  int width, codes;
  int steps = 30;
  int step = 0;
  bool finished = false;
  commvq::WholeSteps whole;
  int64_t tokens = 0;
  double best_error = std::numeric_limits<double>::infinity();
  std::vector<float> rows;         // [tokens][width], as they came
  std::vector<float> table, best;  // [codes][width]
  std::vector<float> thresholds;   // [codes]
  std::vector<uint8_t> bits;
  std::vector<uint16_t> gains;

  void require_tokens() const {
    if (tokens < kLeastTokens) {
      refuse(std::to_string(tokens) + " tokens are too few to fit a codebook; 16 are the least");
    }
  }

  void start() {
    bits.resize(static_cast<size_t>(tokens) * codes / 8);
    gains.resize(static_cast<size_t>(tokens));
    quantise_components();
  }

  // Mean and covariance of the normalised values.
  void moments(std::vector<double>& mean, std::vector<double>& covariance) const {
    const size_t d = static_cast<size_t>(width);
    mean.assign(d, 0.0);
    covariance.assign(d * d, 0.0);
    std::vector<float> normal, turned, part(d * d);
    for (int64_t first = 0; first < tokens; first += kSumTokens) {
      const int64_t count = std::min(kSumTokens, tokens - first);
      normal.resize(static_cast<size_t>(count) * d);
      turned.resize(normal.size());
      ThreadPool::shared().run(static_cast<int>(count), [&](int t) {
        commvq::normalise(rows.data() + (first + t) * width, width, normal.data() + static_cast<size_t>(t) * d);
      });
      for (int64_t t = 0; t < count; ++t) {
        for (size_t c = 0; c < d; ++c) mean[c] += static_cast<double>(normal[static_cast<size_t>(t) * d + c]);
      }
      commvq::transpose(normal.data(), count, width, turned.data());
      commvq::multiply(kernels, turned.data(), width, turned.data(), width, static_cast<int>(count), nullptr,
                       part.data());
      for (size_t i = 0; i < part.size(); ++i) covariance[i] += static_cast<double>(part[i]);
    }
    for (double& x : mean) x /= static_cast<double>(tokens);
    for (size_t i = 0; i < d; ++i) {
      for (size_t j = 0; j < d; ++j)
        covariance[i * d + j] = covariance[i * d + j] / static_cast<double>(tokens) - mean[i] * mean[j];
    }
  }

  // The first codebook: a constant, and for each principal component as many bits, with weights 1, 2, 4 ... times its
  // step, as lower the error most.
  void quantise_components() {
    std::vector<double> mean, covariance, variances, directions;
    moments(mean, covariance);
    commvq::eigenvectors(width, std::move(covariance), variances, directions);
    const size_t d = static_cast<size_t>(width);
    std::vector<int> given(d, 0);
    for (int left = codes - 1; left > 0; --left) {
      size_t neediest = 0;
      double most = -1.0;
      for (size_t k = 0; k < d; ++k) {
        const double gain =
            given[k] < kMostBits ? std::max(variances[k], 0.0) * (kErrors[given[k]] - kErrors[given[k] + 1]) : -1.0;
        if (gain > most) most = gain, neediest = k;
      }
      // All have all the bits that they may have: what is left stays 0.
      if (most < 0.0) break;
      ++given[neediest];
    }
    // Heaviest rows first. A row of weight 2^b is set where no sum of the lighter ones comes nearer.
    struct Row {
      size_t component;
      int bit;
      double length;
    };
    std::vector<Row> order;
    for (size_t k = 0; k < d; ++k) {
      const double step = kSteps[given[k]] * std::sqrt(std::max(variances[k], 0.0));
      for (int b = 0; b < given[k]; ++b) order.push_back({k, b, step * (1 << b)});
    }
    std::stable_sort(order.begin(), order.end(), [](const Row& x, const Row& y) { return x.length > y.length; });
    table.assign(static_cast<size_t>(codes) * d, 0.0f);
    thresholds.assign(static_cast<size_t>(codes), 0.5f);
    thresholds[0] = -65504.0f;
    std::vector<double> constant = mean;
    for (size_t i = 0; i < order.size(); ++i) {
      thresholds[i + 1] = static_cast<float>(1.0 - 0.5 / (1 << order[i].bit));
      for (size_t c = 0; c < d; ++c) {
        const double element = order[i].length * directions[order[i].component * d + c];
        table[(i + 1) * d + c] = static_cast<float>(element);
        constant[c] -= 0.5 * element;
      }
    }
    for (size_t c = 0; c < d; ++c) table[c] = static_cast<float>(constant[c]);
  }

  double squared_error(const ValueCodebook::Impl& codebook) const {
    std::vector<double> errors(static_cast<size_t>(tokens));
    ThreadPool::shared().run(static_cast<int>(tokens), [&](int t) {
      std::vector<float> sum(static_cast<size_t>(width));
      codebook.sum_rows(bits.data() + static_cast<size_t>(t) * codes / 8, sum.data());
      const double gain = static_cast<double>(half_to_float(gains[static_cast<size_t>(t)]));
      const float* row = rows.data() + static_cast<size_t>(t) * width;
      double error = 0.0;
      for (int c = 0; c < width; ++c) {
        const double difference = row[c] - gain * static_cast<double>(sum[static_cast<size_t>(c)]);
        error += difference * difference;
      }
      errors[static_cast<size_t>(t)] = error;
    });
    double sum = 0.0;
    for (const double error : errors) sum += error;
    return sum;
  }

  // C = (S^t S + h)^-1 (S^t V + h C), S being the bits times the gains.
  void fit() {
    const size_t n = static_cast<size_t>(codes), d = static_cast<size_t>(width);
    std::vector<double> matrix(n * n, 0.0), rhs(n * d, 0.0);
    std::vector<float> left, right, square(n * n), mixed(n * d);
    for (int64_t first = 0; first < tokens; first += kSumTokens) {
      const int64_t count = std::min(kSumTokens, tokens - first);
      left.resize(n * static_cast<size_t>(count));
      right.resize(d * static_cast<size_t>(count));
      ThreadPool::shared().run(codes / 8, [&](int byte) {
        for (int64_t t = 0; t < count; ++t) {
          const float gain = half_to_float(gains[static_cast<size_t>(first + t)]);
          const uint8_t eight = bits[static_cast<size_t>(first + t) * n / 8 + byte];
          for (int i = 0; i < 8; ++i)
            left[(byte * 8 + i) * static_cast<size_t>(count) + t] = eight >> i & 1 ? gain : 0.0f;
        }
      });
      commvq::transpose(rows.data() + first * width, count, width, right.data());
      commvq::multiply(kernels, left.data(), codes, left.data(), codes, static_cast<int>(count), nullptr,
                       square.data());
      commvq::multiply(kernels, left.data(), codes, right.data(), width, static_cast<int>(count), nullptr,
                       mixed.data());
      for (size_t i = 0; i < square.size(); ++i) matrix[i] += static_cast<double>(square[i]);
      for (size_t i = 0; i < mixed.size(); ++i) rhs[i] += static_cast<double>(mixed[i]);
    }
    double trace = 0.0;
    for (size_t i = 0; i < n; ++i) trace += matrix[i * n + i];
    const double hold = std::max(kHold * trace / static_cast<double>(n), std::numeric_limits<double>::min());
    for (size_t i = 0; i < n; ++i) {
      matrix[i * n + i] += hold;
      for (size_t c = 0; c < d; ++c) rhs[i * d + c] += hold * static_cast<double>(table[i * d + c]);
    }
    commvq::solve_symmetric(codes, matrix, width, rhs);
    for (size_t i = 0; i < rhs.size(); ++i) {
      table[i] = static_cast<float>(std::min(std::max(rhs[i], -65504.0), 65504.0));
    }
  }

  void advance() {
    ValueCodebook* const made = ValueCodebook::create(width, codes, table.data(), thresholds.data());
    const std::unique_ptr<ValueCodebook, void (*)(ValueCodebook*)> codebook(made, ValueCodebook::destroy);
    codebook->encode(rows.data(), tokens, bits.data(), gains.data());
    const double error = squared_error(codebook->impl()) / (static_cast<double>(tokens) * width);
    const bool still = !(error < best_error * (1.0 - kStill));
    if (error < best_error) {
      best_error = error;
      best = codebook->impl().table;
    }
    ++step;
    finished = still || step >= steps;
    if (!finished) fit();
  }
};

ValueFitter::ValueFitter() = default;
ValueFitter::~ValueFitter() = default;
void ValueFitter::destroy(ValueFitter* fitter) { delete fitter; }

ValueFitter* ValueFitter::create(int width, int codes) {
  commvq::require_value_shape(width, codes);
  std::unique_ptr<ValueFitter> fitter(new ValueFitter());
  fitter->impl_ = std::make_unique<Impl>();
  fitter->impl_->width = width;
  fitter->impl_->codes = codes;
  return fitter.release();
}

void ValueFitter::set_steps(int steps) {
  require_range("steps", steps, 1, 10000);
  if (impl_->step > 0) refuse("steps are set before the first one");
  impl_->steps = steps;
}

void ValueFitter::add(const float* rows, int64_t tokens) {
  require_pointer("rows", rows);
  require_range("tokens", tokens, 1, std::numeric_limits<int>::max());
  if (impl_->step > 0) refuse("values are added before the first step");
  require_rows(rows, tokens, impl_->width);
  require_range("tokens in all", impl_->tokens + tokens, 1, std::numeric_limits<int>::max());
  impl_->rows.insert(impl_->rows.end(), rows, rows + tokens * impl_->width);
  impl_->tokens += tokens;
}

bool ValueFitter::step() {
  impl_->whole.require();
  if (impl_->finished) return false;
  if (impl_->step == 0) impl_->require_tokens();
  impl_->whole.run([&] {
    if (impl_->step == 0) impl_->start();
    impl_->advance();
  });
  return true;
}

double ValueFitter::done() const { return impl_->finished ? 1.0 : static_cast<double>(impl_->step) / impl_->steps; }
int64_t ValueFitter::tokens() const { return impl_->tokens; }
double ValueFitter::error() const { return impl_->best_error; }

void ValueFitter::read_table(float* out) const {
  require_pointer("out", out);
  impl_->whole.require();
  if (impl_->best.empty()) refuse("there is no codebook before the first step");
  std::copy(impl_->best.begin(), impl_->best.end(), out);
}

void ValueFitter::read_thresholds(float* out) const {
  require_pointer("out", out);
  impl_->whole.require();
  if (impl_->best.empty()) refuse("there is no codebook before the first step");
  std::copy(impl_->thresholds.begin(), impl_->thresholds.end(), out);
}

}  // namespace kvasir
