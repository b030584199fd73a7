// Training of a value encoder with its codebook.
//
// Forward, for a batch of values x divided by their root mean square: logits of the encoder, plus Gumbel noise; of each
// four the largest sets two bits, s; the error is |s C - x|^2, weighted by the mean square of the value so that it
// counts in the units of the values. Backward: the choice of the largest is differentiated as if it were the softmax of
// the same numbers (straight-through).
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/checks.h"
#include "base/thread_pool.h"
#include "calibrate/commvq/linear.h"
#include "calibrate/commvq/random.h"
#include "calibrate/commvq/temperature.h"
#include "calibrate/commvq/whole_steps.h"
#include "codecs/commvq/value_codebook.h"
#include "codecs/commvq/value_encoder.h"
#include "kvasir/commvq_training.h"
#include "kvasir/matrix.h"

namespace kvasir {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr int64_t kLeastTokens = 16;
constexpr double kFirstDecay = 0.9, kSecondDecay = 0.95, kEpsilon = 1e-8;
// Gradients longer than this, all parameters together, are shortened to it.
constexpr double kMostGradient = 1.0;
constexpr int kElementsPerTask = 1 << 15;

// What random numbers are for.
enum Purpose : uint64_t { kBatchTokens, kNoise, kFirstInit, kSecondInit, kTableInit };

// Parameters with AdamW's moments.
struct Parameters {
  std::vector<float> gradient, first, second;
  bool decays;

  Parameters(size_t count, bool decays) : gradient(count), first(count, 0.0f), second(count, 0.0f), decays(decays) {}

  double squared_gradient() const {
    double sum = 0.0;
    for (const float g : gradient) sum += static_cast<double>(g) * g;
    return sum;
  }
  // Step `number` counts from 1.
  void update(int number, double rate, double decay, double shorten, std::vector<float>& values) {
    const float one = static_cast<float>(1.0 / (1.0 - std::pow(kFirstDecay, number)));
    const float two = static_cast<float>(1.0 / (1.0 - std::pow(kSecondDecay, number)));
    const float keep = static_cast<float>(decays ? 1.0 - rate * decay : 1.0);
    const int tasks = static_cast<int>((values.size() + kElementsPerTask - 1) / kElementsPerTask);
    ThreadPool::shared().run(tasks, [&](int task) {
      const size_t end = std::min(values.size(), (task + size_t{1}) * kElementsPerTask);
      for (size_t i = static_cast<size_t>(task) * kElementsPerTask; i < end; ++i) {
        const float g = static_cast<float>(gradient[i] * shorten);
        first[i] = static_cast<float>(kFirstDecay * first[i] + (1.0 - kFirstDecay) * g);
        second[i] = static_cast<float>(kSecondDecay * second[i] + (1.0 - kSecondDecay) * g * g);
        const float step = first[i] * one / (std::sqrt(second[i] * two) + static_cast<float>(kEpsilon));
        values[i] = values[i] * keep - static_cast<float>(rate) * step;
      }
    });
  }
};

// out[m][n] = sum over k of a[k][m] * b[k][n]: the gradient of a layer's weights from those of its output and its
// input.
void multiply_turned(const std::vector<float>& a, const std::vector<float>& b, int depth, int rows, int columns,
                     std::vector<float>& out) {
  std::vector<float> left(a.size()), right(b.size());
  commvq::transpose(a.data(), depth, rows, left.data());
  commvq::transpose(b.data(), depth, columns, right.data());
  matrix_product(left.data(), right.data(), nullptr, rows, columns, depth, out.data());
}

// out[m][n] = sum over k of a[m][k] * b[k][n].
void multiply_plain(const std::vector<float>& a, const std::vector<float>& b, int rows, int depth, int columns,
                    std::vector<float>& out) {
  std::vector<float> turned(b.size());
  commvq::transpose(b.data(), depth, columns, turned.data());
  matrix_product(a.data(), turned.data(), nullptr, rows, columns, depth, out.data());
}

// Sums over the rows of a [rows][columns].
void sum_rows(const std::vector<float>& a, int rows, std::vector<float>& out) {
  const size_t columns = out.size();
  std::fill(out.begin(), out.end(), 0.0f);
  for (int r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) out[c] += a[r * columns + c];
  }
}

}  // namespace

struct ValueTrainer::Impl {
  commvq::EncoderWeights weights;
  uint64_t seed;
  int steps = 2000, batch = 256;
  double rate = 1e-3, decay = 0.01, temperature = 1.0;
  std::vector<float> table;  // [codes][width]
  std::vector<float> rows;   // [tokens][width], as they came
  double mean_square = 0.0;  // of all elements
  int step = 0;
  commvq::WholeSteps whole;
  double batch_error = std::numeric_limits<double>::infinity();
  Parameters norm_weight, norm_bias, first_weight, first_bias, second_weight, second_bias, codebook;

  Impl(int width, int hidden, int codes, uint64_t seed)
      : weights(width, hidden, codes),
        seed(seed),
        norm_weight(width, false),
        norm_bias(width, false),
        first_weight(static_cast<size_t>(hidden) * width, true),
        first_bias(hidden, false),
        second_weight(static_cast<size_t>(2) * codes * hidden, true),
        second_bias(static_cast<size_t>(2) * codes, false),
        codebook(static_cast<size_t>(codes) * width, false) {}

  int64_t tokens() const { return static_cast<int64_t>(rows.size()) / weights.width; }

  double random(Purpose purpose, uint64_t a, uint64_t b) const {
    return commvq::unit_interval(commvq::random_bits(seed, purpose, a, b));
  }
  // Uniform in -bound..bound.
  void fill(Purpose purpose, double bound, std::vector<float>& values) const {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(bound * (2.0 * random(purpose, 0, i) - 1.0));
    }
  }

  void require_tokens() const {
    if (tokens() < kLeastTokens) refuse(std::to_string(tokens()) + " tokens are too few to train on; 16 are the least");
  }

  void start() {
    const int64_t count = tokens();
    const int width = weights.width;
    std::vector<double> magnitude(width, 0.0);
    for (int64_t t = 0; t < count; ++t) {
      for (int c = 0; c < width; ++c) {
        const double x = rows[t * width + c];
        magnitude[c] += std::fabs(x);
        mean_square += x * x;
      }
    }
    mean_square = std::max(mean_square / static_cast<double>(rows.size()), 1e-30);
    // Mean magnitudes, as published; a channel that is always 0 is left alone.
    for (int c = 0; c < width; ++c) {
      weights.scale[c] = magnitude[c] > 0.0 ? static_cast<float>(std::max(magnitude[c] / count, 1e-30)) : 1.0f;
    }
    fill(kFirstInit, 1.0 / std::sqrt(1.0 * width), weights.first_weight);
    fill(kSecondInit, 1.0 / std::sqrt(1.0 * weights.hidden), weights.second_weight);
    // Half of the bits are set: sums of the rows have about the variance of what they should become.
    if (table.empty()) {
      table.resize(codebook.gradient.size());
      fill(kTableInit, std::sqrt(12.0 / weights.codes), table);
    }
  }

  double learning_rate() const {
    const double warm = std::max(1.0, steps / 20.0);
    if (step < warm) return rate * (step + 1) / warm;
    return rate * 0.5 * (1.0 + std::cos(kPi * (step - warm) / std::max(1.0, steps - warm)));
  }

  void advance() {
    const int width = weights.width, hidden = weights.hidden, codes = weights.codes;
    const size_t b = static_cast<size_t>(batch);
    std::vector<float> plain(b * width), input(b * width), target(b * width), importance(b);
    ThreadPool::shared().run(batch, [&](int t) {
      const int64_t token = std::min<int64_t>(
          tokens() - 1, static_cast<int64_t>(random(kBatchTokens, step, t) * static_cast<double>(tokens())));
      const float* row = rows.data() + token * width;
      float* const x = plain.data() + static_cast<size_t>(t) * width;
      commvq::standardise(weights, row, x);
      for (int c = 0; c < width; ++c) {
        input[static_cast<size_t>(t) * width + c] = x[c] * weights.norm_weight[c] + weights.norm_bias[c];
      }
      const double norm = commvq::normalise(row, width, target.data() + static_cast<size_t>(t) * width);
      // 0 for a row of zeros: its gain will be 0, whatever its bits are.
      importance[t] = static_cast<float>(norm * norm / mean_square);
    });

    // Forward.
    std::vector<float> before(b * hidden), middle(b * hidden), logits(b * 2 * codes), bits(b * codes), sums(b * width);
    matrix_product(input.data(), weights.first_weight.data(), weights.first_bias.data(), batch, hidden, width,
                   before.data());
    ThreadPool::shared().run(batch, [&](int t) {
      for (size_t i = static_cast<size_t>(t) * hidden; i < (t + size_t{1}) * hidden; ++i)
        middle[i] = commvq::gelu(before[i]);
    });
    matrix_product(middle.data(), weights.second_weight.data(), weights.second_bias.data(), batch, 2 * codes, hidden,
                   logits.data());
    ThreadPool::shared().run(batch, [&](int t) { choose(t, logits, bits); });
    multiply_plain(bits, table, batch, codes, width, sums);

    // The error, and its derivative by the sums.
    std::vector<double> errors(b, 0.0);
    std::vector<float> slope(b * width);
    ThreadPool::shared().run(batch, [&](int t) {
      for (size_t i = static_cast<size_t>(t) * width; i < (t + size_t{1}) * width; ++i) {
        const float difference = sums[i] - target[i];
        errors[t] += static_cast<double>(importance[t]) * difference * difference;
        slope[i] = 2.0f * importance[t] * difference / static_cast<float>(b * width);
      }
    });
    double error = 0.0;
    for (const double e : errors) error += e;
    batch_error = error / static_cast<double>(b * width) * mean_square;

    // Backward.
    multiply_turned(bits, slope, batch, codes, width, codebook.gradient);
    std::vector<float> bit_slope(b * codes), middle_slope(b * hidden), input_slope(b * width);
    matrix_product(slope.data(), table.data(), nullptr, batch, codes, width, bit_slope.data());
    ThreadPool::shared().run(batch, [&](int t) { soften(t, bit_slope, logits); });
    multiply_turned(logits, middle, batch, 2 * codes, hidden, second_weight.gradient);
    sum_rows(logits, batch, second_bias.gradient);
    multiply_plain(logits, weights.second_weight, batch, 2 * codes, hidden, middle_slope);
    ThreadPool::shared().run(batch, [&](int t) {
      for (size_t i = static_cast<size_t>(t) * hidden; i < (t + size_t{1}) * hidden; ++i) {
        middle_slope[i] *= commvq::gelu_slope(before[i]);
      }
    });
    multiply_turned(middle_slope, input, batch, hidden, width, first_weight.gradient);
    sum_rows(middle_slope, batch, first_bias.gradient);
    multiply_plain(middle_slope, weights.first_weight, batch, hidden, width, input_slope);
    sum_rows(input_slope, batch, norm_bias.gradient);
    for (size_t i = 0; i < input_slope.size(); ++i) input_slope[i] *= plain[i];
    sum_rows(input_slope, batch, norm_weight.gradient);

    update();
    ++step;
  }

  // Adds noise to the logits of a token, divides by the temperature and sets its bits.
  void choose(int t, std::vector<float>& logits, std::vector<float>& bits) const {
    const int codes = weights.codes;
    float* const mine = logits.data() + static_cast<size_t>(t) * 2 * codes;
    for (int i = 0; i < 2 * codes; ++i) {
      const uint64_t place = static_cast<uint64_t>(t) * 2 * codes + i;
      const double noise = -std::log(-std::log(random(kNoise, step, place)));
      mine[i] = static_cast<float>((mine[i] + noise) / temperature);
    }
    for (int pair = 0; pair < codes / 2; ++pair) {
      const int chosen = commvq::class_of(mine + 4 * pair);
      bits[static_cast<size_t>(t) * codes + 2 * pair] = commvq::kFirstBit[chosen] ? 1.0f : 0.0f;
      bits[static_cast<size_t>(t) * codes + 2 * pair + 1] = commvq::kSecondBit[chosen] ? 1.0f : 0.0f;
    }
  }

  // From derivatives by the bits of a token to those by its logits, which they replace.
  void soften(int t, const std::vector<float>& bit_slope, std::vector<float>& logits) const {
    const int codes = weights.codes;
    for (int pair = 0; pair < codes / 2; ++pair) {
      float* const mine = logits.data() + static_cast<size_t>(t) * 2 * codes + 4 * pair;
      const float* const slope = bit_slope.data() + static_cast<size_t>(t) * codes + 2 * pair;
      const float most = mine[commvq::class_of(mine)];
      float share[4], by_class[4], sum = 0.0f, mean = 0.0f;
      for (int i = 0; i < 4; ++i) {
        sum += share[i] = std::exp(mine[i] - most);
        by_class[i] = (commvq::kFirstBit[i] ? slope[0] : 0.0f) + (commvq::kSecondBit[i] ? slope[1] : 0.0f);
      }
      for (int i = 0; i < 4; ++i) mean += (share[i] /= sum) * by_class[i];
      for (int i = 0; i < 4; ++i) mine[i] = share[i] * (by_class[i] - mean) / static_cast<float>(temperature);
    }
  }

  void update() {
    struct Group {
      Parameters* parameters;
      std::vector<float>* values;
    };
    const Group groups[] = {{&norm_weight, &weights.norm_weight},
                            {&norm_bias, &weights.norm_bias},
                            {&first_weight, &weights.first_weight},
                            {&first_bias, &weights.first_bias},
                            {&second_weight, &weights.second_weight},
                            {&second_bias, &weights.second_bias},
                            {&codebook, &table}};
    double square = 0.0;
    for (const Group& group : groups) square += group.parameters->squared_gradient();
    const double shorten = std::min(1.0, kMostGradient / std::max(std::sqrt(square), 1e-30));
    for (const Group& group : groups) {
      group.parameters->update(step + 1, learning_rate(), decay, shorten, *group.values);
    }
  }

  void require_before_start(const char* what) const {
    if (step > 0) refuse(std::string(what) + " before the first step");
  }
};

ValueTrainer::ValueTrainer() = default;
ValueTrainer::~ValueTrainer() = default;
void ValueTrainer::destroy(ValueTrainer* trainer) { delete trainer; }

ValueTrainer* ValueTrainer::create(int width, int hidden, int codes, int64_t seed) {
  std::unique_ptr<ValueTrainer> trainer(new ValueTrainer());
  trainer->impl_ = std::make_unique<Impl>(width, hidden, codes, static_cast<uint64_t>(seed));
  return trainer.release();
}

void ValueTrainer::set_steps(int steps) {
  require_range("steps", steps, 1, 100000000);
  impl_->require_before_start("steps are set");
  impl_->steps = steps;
}

void ValueTrainer::set_batch(int tokens) {
  require_range("tokens of a batch", tokens, 1, 65536);
  impl_->require_before_start("the batch is set");
  impl_->batch = tokens;
}

void ValueTrainer::set_learning_rate(double rate) {
  if (!(rate > 0.0 && rate <= 1.0)) refuse("learning rate is " + float_text(rate));
  impl_->require_before_start("the learning rate is set");
  impl_->rate = rate;
}

void ValueTrainer::set_weight_decay(double decay) {
  if (!(decay >= 0.0 && decay <= 1.0)) refuse("weight decay is " + float_text(decay));
  impl_->require_before_start("the weight decay is set");
  impl_->decay = decay;
}

void ValueTrainer::set_temperature(double temperature) {
  commvq::require_temperature(temperature);
  impl_->require_before_start("the temperature is set");
  impl_->temperature = temperature;
}

void ValueTrainer::set_table(const float* table) {
  require_pointer("table", table);
  impl_->require_before_start("the codebook is set");
  require_rows(table, impl_->weights.codes, impl_->weights.width, 65504.0f);
  impl_->table.assign(table, table + impl_->codebook.gradient.size());
}

void ValueTrainer::add(const float* rows, int64_t tokens) {
  require_pointer("rows", rows);
  require_range("tokens", tokens, 1, std::numeric_limits<int>::max());
  impl_->require_before_start("values are added");
  require_rows(rows, tokens, impl_->weights.width);
  require_range("tokens in all", impl_->tokens() + tokens, 1, std::numeric_limits<int>::max());
  impl_->rows.insert(impl_->rows.end(), rows, rows + tokens * impl_->weights.width);
}

bool ValueTrainer::step() {
  impl_->whole.require();
  if (impl_->step >= impl_->steps) return false;
  if (impl_->step == 0) impl_->require_tokens();
  impl_->whole.run([&] {
    if (impl_->step == 0) impl_->start();
    impl_->advance();
  });
  return true;
}

double ValueTrainer::done() const { return static_cast<double>(impl_->step) / impl_->steps; }
int64_t ValueTrainer::tokens() const { return impl_->tokens(); }
double ValueTrainer::batch_error() const { return impl_->batch_error; }

void ValueTrainer::read(float* scale, float* norm_weight, float* norm_bias, float* first_weight, float* first_bias,
                        float* second_weight, float* second_bias, float* table) const {
  impl_->whole.require();
  if (impl_->step == 0) refuse("there is nothing to read before the first step");
  const commvq::EncoderWeights& weights = impl_->weights;
  const auto copy = [](const char* name, const std::vector<float>& from, float* to) {
    require_pointer(name, to);
    std::copy(from.begin(), from.end(), to);
  };
  copy("scale", weights.scale, scale);
  copy("norm_weight", weights.norm_weight, norm_weight);
  copy("norm_bias", weights.norm_bias, norm_bias);
  copy("first_weight", weights.first_weight, first_weight);
  copy("first_bias", weights.first_bias, first_bias);
  copy("second_weight", weights.second_weight, second_weight);
  copy("second_bias", weights.second_bias, second_bias);
  copy("table", impl_->table, table);
}

}  // namespace kvasir
