// The softmax step on every backend, against double.
//
// The bound of one weight exp(s - max): the float32 difference x = s - max is rounded once, which moves exp(x) by a
// factor within 1 + |x| * 2^-24; a float32 exp of reasonable make adds a few units in the last place, say 8 * 2^-24.
// Where the true weight is below 2^-100 it cannot matter next to the 1 that the maximum contributes, and may be flushed
// to 0.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/formats.h"
#include "support/guarded.h"

using kvasir::kPageTokens;

namespace {

constexpr double kUnit = 0x1p-24;

double weight_bound(double x) { return (std::fabs(x) + 8.0) * kUnit * std::exp(x) + 0x1p-100; }

// Several steps of one row; the state must match the softmax over all scores seen so far.
void check_steps(const kvasir::Backend& backend, support::Random& random, int head_dim, double spread) {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
  support::Guarded<float> output(head_dim);
  std::fill_n(output.data(), head_dim, 0.0f);
  std::vector<double> expected_output(head_dim, 0.0);
  double expected_max = -std::numeric_limits<double>::infinity(), expected_sum = 0.0, climbed = 0.0;

  for (int step = 0; step < 6; ++step) {
    const int begin = random.below(kPageTokens);
    const int end = begin + 1 + random.below(kPageTokens - begin);
    support::Guarded<float> scores(kPageTokens);
    for (int t = 0; t < kPageTokens; ++t) {
      scores[t] = t < begin || t >= end ? 1e30f : static_cast<float>(spread * random.normal());
    }
    const std::vector<float> input(scores.data(), scores.data() + kPageTokens);
    double new_max = expected_max;
    for (int t = begin; t < end; ++t) new_max = std::max(new_max, static_cast<double>(input[t]));
    const double rescale = step == 0 ? 0.0 : std::exp(expected_max - new_max);
    const double climb = step == 0 ? 0.0 : new_max - expected_max;
    climbed += climb;
    double total = 0.0;
    for (int t = begin; t < end; ++t) total += std::exp(input[t] - new_max);
    expected_sum = expected_sum * rescale + total;
    expected_max = new_max;

    backend.rows->softmax(scores.data(), begin, end, &max, &sum, output.data(), head_dim);

    REQUIRE_MESSAGE(max == new_max, backend.name);
    int wrong = 0;
    for (int t = 0; t < kPageTokens; ++t) {
      const double want = t < begin || t >= end ? 0.0 : std::exp(input[t] - new_max);
      wrong += t < begin || t >= end ? scores[t] != 0.0f
                                     : !(std::fabs(scores[t] - want) <= weight_bound(input[t] - new_max));
    }
    CHECK_MESSAGE(wrong == 0, backend.name, ", step ", step, ", ", begin, "..", end, ": ", wrong, " weights");
    // The largest relative error of any term and of the rescalings so far, and one rounding per addition. Terms whose
    // weight is below e^-40 of the maximum's 1 add less than 128 * e^-40 * 60 * 2^-24 together.
    const double bound = (40.0 + climbed + (step + 1) * (kPageTokens + 16.0)) * kUnit * expected_sum;
    CHECK_MESSAGE(std::fabs(sum - expected_sum) <= bound, backend.name, ", step ", step);

    int wrong_outputs = 0;
    for (int c = 0; c < head_dim; ++c) {
      expected_output[c] *= rescale;
      const double output_bound = (climb + 10.0) * kUnit * std::fabs(expected_output[c]) + 0x1p-100;
      wrong_outputs += !(std::fabs(output[c] - expected_output[c]) <= output_bound);
      output[c] = static_cast<float>(random.normal());
      expected_output[c] = output[c];
    }
    CHECK_MESSAGE(wrong_outputs == 0, backend.name, ", step ", step);
    CHECK(output.guards_intact());
    CHECK(scores.guards_intact());
  }
}

}  // namespace

TEST_CASE("softmax: steps of random scores") {
  for (const kvasir::Backend* backend : support::available_backends()) {
    support::Random random(support::seed());
    for (const int head_dim : support::kHeadDims) {
      // From near-uniform weights to one that dwarfs the rest, past the point where float32 exp underflows.
      for (const double spread : {0.01, 1.0, 10.0, 200.0}) {
        for (int round = 0; round < support::repeat(10); ++round) check_steps(*backend, random, head_dim, spread);
      }
    }
  }
}

TEST_CASE("softmax: every distance from the maximum") {
  // exp over its whole range, in steps of 1/64, as weights relative to a first score of 0.
  for (const kvasir::Backend* backend : support::available_backends()) {
    int wrong = 0;
    for (int start = 0; start < 120 * 64; start += kPageTokens - 1) {
      float scores[kPageTokens], output[32] = {};
      scores[0] = 0.0f;
      for (int t = 1; t < kPageTokens; ++t) scores[t] = -static_cast<float>(start + t) / 64.0f;
      float max = -std::numeric_limits<float>::infinity(), sum = 0.0f;
      backend->rows->softmax(scores, 0, kPageTokens, &max, &sum, output, 32);
      wrong += scores[0] != 1.0f;
      for (int t = 1; t < kPageTokens; ++t) {
        const double x = -(start + t) / 64.0;
        wrong += !(std::fabs(scores[t] - std::exp(x)) <= weight_bound(x));
      }
    }
    CHECK_MESSAGE(wrong == 0, backend->name, ": ", wrong);
  }
}

TEST_CASE("softmax: huge scores stay finite") {
  for (const kvasir::Backend* backend : support::available_backends()) {
    float scores[kPageTokens], output[32];
    for (int t = 0; t < kPageTokens; ++t) scores[t] = t % 2 == 0 ? 3e38f : -3e38f;
    std::fill_n(output, 32, 1.0f);
    float max = -3e38f, sum = 5.0f;
    backend->rows->softmax(scores, 0, kPageTokens, &max, &sum, output, 32);
    CHECK(max == 3e38f);
    CHECK_MESSAGE(sum == 64.0f, backend->name);
    CHECK(output[0] == 0.0f);
    for (int t = 0; t < kPageTokens; ++t) CHECK(scores[t] == (t % 2 == 0 ? 1.0f : 0.0f));
  }
}

TEST_CASE("softmax: scores that are no numbers leave none, wherever they stand") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const kvasir::Backend* backend : support::available_backends()) {
    // The sum after a first step with these scores, or one after others, and a step of numbers.
    const auto sum_after = [&](float score, int place, bool first) {
      float scores[kPageTokens], output[32] = {};
      float max = first ? -kInfinity : 0.5f, sum = first ? 0.0f : 1.0f;
      for (int t = 0; t < kPageTokens; ++t) scores[t] = place < 0 || t == place ? score : 0.01f * static_cast<float>(t);
      backend->rows->softmax(scores, 0, kPageTokens, &max, &sum, output, 32);
      std::fill_n(scores, kPageTokens, 2.0f);
      backend->rows->softmax(scores, 0, kPageTokens, &max, &sum, output, 32);
      return sum;
    };
    int numbers = 0;
    for (const float score : {kNan, -kNan, kInfinity}) {
      for (int place = -1; place < kPageTokens; ++place) {
        for (const bool first : {true, false}) numbers += !std::isnan(sum_after(score, place, first));
      }
    }
    numbers += !std::isnan(sum_after(-kInfinity, -1, true));
    CHECK_MESSAGE(numbers == 0, backend->name);
    CHECK_MESSAGE(std::isfinite(sum_after(-kInfinity, 70, true)), backend->name, ": a token without weight");
    float scores[kPageTokens] = {};
    scores[70] = kNan;
    backend->rows->soft_cap(scores, 0, kPageTokens, 30.0f);
    CHECK_MESSAGE(std::isnan(scores[70]), backend->name, ": a cap");
  }
}

TEST_CASE("softmax: soft caps are right to two millionths, whatever the score and however large the cap") {
  for (const kvasir::Backend* backend : support::available_backends()) {
    int wrong = 0;
    support::Random random(support::seed());
    for (const float cap : {1e-30f, 0.5f, 30.0f, 50.0f, 1e4f, 1e9f, 3e38f}) {
      for (const double size : {0.0, 1e-30, 1e-6, 1e-2, 1.0, 5.0, 100.0, 1e30}) {
        const int begin = random.below(kPageTokens), end = begin + 1 + random.below(kPageTokens - begin);
        support::Guarded<float> scores(kPageTokens);
        std::vector<float> input(kPageTokens);
        for (int t = 0; t < kPageTokens; ++t) {
          const double score = size * cap * random.normal();
          input[t] = scores.data()[t] = static_cast<float>(std::clamp<double>(score, -FLT_MAX, FLT_MAX));
        }
        backend->rows->soft_cap(scores.data(), begin, end, cap);
        for (int t = begin; t < end; ++t) {
          const double expected = cap * std::tanh(static_cast<double>(input[t]) / cap);
          wrong += !(std::fabs(scores.data()[t] - expected) <= 2e-6 * std::fabs(expected) + FLT_MIN);
        }
      }
    }
    CHECK_MESSAGE(wrong == 0, backend->name);
  }
}
