#include "codecs/commvq/value_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/aligned.h"
#include "base/checks.h"
#include "base/thread_pool.h"
#include "codecs/commvq/products.h"
#include "codecs/commvq/value_codebook.h"

namespace kvasir {
namespace commvq {

EncoderWeights::EncoderWeights(int width, int hidden, int codes) : width(width), hidden(hidden), codes(codes) {
  require_value_shape(width, codes);
  require_range("hidden", hidden, 1, 65536);
  // 1 GiB; training needs four times that. Before anything is allocated.
  constexpr int64_t kMostWeights = int64_t{1} << 28;
  const int64_t all = int64_t{hidden} * (int64_t{width} + 2 * codes);
  if (all > kMostWeights) {
    refuse("an encoder of " + std::to_string(hidden) + " hidden units for width " + std::to_string(width) + " and " +
           std::to_string(codes) + " codes has " + std::to_string(all) + " weights, more than " +
           std::to_string(kMostWeights));
  }
  scale.assign(width, 1.0f);
  norm_weight.assign(width, 1.0f);
  norm_bias.assign(width, 0.0f);
  first_weight.assign(static_cast<size_t>(hidden) * width, 0.0f);
  first_bias.assign(hidden, 0.0f);
  second_weight.assign(static_cast<size_t>(2) * codes * hidden, 0.0f);
  second_bias.assign(static_cast<size_t>(2) * codes, 0.0f);
}

void standardise(const EncoderWeights& weights, const float* row, float* out) {
  const int width = weights.width;
  double square = 0.0, sum = 0.0;
  for (int c = 0; c < width; ++c) {
    out[c] = row[c] / weights.scale[c];
    square += static_cast<double>(out[c]) * out[c];
    sum += static_cast<double>(out[c]);
  }
  // A row of zeros has no direction: it stays 0.
  const double length = square > 0.0 ? std::sqrt(square) : 1.0;
  const double mean = sum / length / width;
  double variance = 0.0;
  for (int c = 0; c < width; ++c) {
    const double x = out[c] / length - mean;
    variance += x * x;
  }
  const double deviation = std::sqrt(variance / width + 1e-5);
  for (int c = 0; c < width; ++c) out[c] = static_cast<float>((out[c] / length - mean) / deviation);
}

float gelu(float x) { return 0.5f * x * (1.0f + std::erf(x * 0.70710678f)); }

float gelu_slope(float x) {
  return 0.5f * (1.0f + std::erf(x * 0.70710678f)) + x * 0.39894228f * std::exp(-0.5f * x * x);
}

}  // namespace commvq

namespace {

// Tokens whose hidden layer is in memory at once.
constexpr int64_t kBatch = 512;

void copy_finite(const char* name, const float* from, std::vector<float>& to) {
  require_pointer(name, from);
  for (size_t i = 0; i < to.size(); ++i) {
    if (!std::isfinite(from[i])) {
      throw Error(ErrorCode::kNotFinite, std::string(name) + ": " + float_text(from[i]) + " at " + std::to_string(i));
    }
    to[i] = from[i];
  }
}

}  // namespace

ValueEncoder::Impl::Impl(int width, int codes, const commvq::ValueNetwork& given, const CodebookKernels& kernels)
    : kernels(kernels), weights(width, given.hidden, codes) {
  copy_finite("scale", given.scale, weights.scale);
  for (int c = 0; c < width; ++c) {
    if (!(given.scale[c] > 0.0f)) {
      refuse("scale is " + float_text(given.scale[c]) + " at " + std::to_string(c) + ", not positive");
    }
  }
  copy_finite("norm_weight", given.norm_weight, weights.norm_weight);
  copy_finite("norm_bias", given.norm_bias, weights.norm_bias);
  copy_finite("first_weight", given.first_weight, weights.first_weight);
  copy_finite("first_bias", given.first_bias, weights.first_bias);
  copy_finite("second_weight", given.second_weight, weights.second_weight);
  copy_finite("second_bias", given.second_bias, weights.second_bias);
}

ValueEncoder::ValueEncoder() = default;
ValueEncoder::~ValueEncoder() = default;
void ValueEncoder::destroy(ValueEncoder* encoder) { delete encoder; }

ValueEncoder* ValueEncoder::share() const {
  auto* encoder = new ValueEncoder();
  encoder->impl_ = impl_;
  return encoder;
}

int ValueEncoder::width() const { return impl_->weights.width; }
int ValueEncoder::hidden() const { return impl_->weights.hidden; }
int ValueEncoder::codes() const { return impl_->weights.codes; }

void ValueEncoder::encode(const float* rows, int64_t tokens, uint8_t* bits) const {
  require_pointer("rows", rows);
  require_pointer("bits", bits);
  require_range("tokens", tokens, 1, std::numeric_limits<int>::max());
  const commvq::EncoderWeights& weights = impl_->weights;
  const int width = weights.width, hidden = weights.hidden, codes = weights.codes;
  require_rows(rows, tokens, width);
  const size_t batch = static_cast<size_t>(std::min(tokens, kBatch));
  const AlignedArray<float> input = make_aligned<float>(batch * width);
  const AlignedArray<float> middle = make_aligned<float>(batch * hidden);
  const AlignedArray<float> logits = make_aligned<float>(batch * 2 * codes);
  for (int64_t first = 0; first < tokens; first += kBatch) {
    const int count = static_cast<int>(std::min(kBatch, tokens - first));
    ThreadPool::current().run(count, [&](int t) {
      float* const x = input.get() + static_cast<size_t>(t) * width;
      commvq::standardise(weights, rows + (first + t) * width, x);
      for (int c = 0; c < width; ++c) x[c] = x[c] * weights.norm_weight[c] + weights.norm_bias[c];
    });
    commvq::multiply(impl_->kernels, input.get(), count, weights.first_weight.data(), hidden, width,
                     weights.first_bias.data(), middle.get());
    ThreadPool::current().run(count, [&](int t) {
      float* const x = middle.get() + static_cast<size_t>(t) * hidden;
      for (int i = 0; i < hidden; ++i) x[i] = commvq::gelu(x[i]);
    });
    commvq::multiply(impl_->kernels, middle.get(), count, weights.second_weight.data(), 2 * codes, hidden,
                     weights.second_bias.data(), logits.get());
    ThreadPool::current().run(count, [&](int t) {
      uint8_t* const mine = bits + static_cast<size_t>(first + t) * codes / 8;
      memset(mine, 0, static_cast<size_t>(codes) / 8);
      for (int pair = 0; pair < codes / 2; ++pair) {
        const int chosen = commvq::class_of(logits.get() + static_cast<size_t>(t) * 2 * codes + 4 * pair);
        const int both = commvq::kFirstBit[chosen] | commvq::kSecondBit[chosen] << 1;
        mine[pair / 4] |= static_cast<uint8_t>(both << (pair % 4 * 2));
      }
    });
  }
}

}  // namespace kvasir
