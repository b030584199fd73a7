// Merging softmax states: any way of cutting a row of scores gives the softmax of the whole.
#include "attention/softmax_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"

namespace {

constexpr int kDim = 5;
constexpr int kRows = 3;

struct OwnedState {
  std::vector<float> max = std::vector<float>(kRows), sum = std::vector<float>(kRows);
  std::vector<float> output = std::vector<float>(kRows * kDim);
  kvasir::SoftmaxState view() { return {max.data(), sum.data(), output.data(), kDim}; }
};

// The state over scores[begin..end) of each row, straight from its definition.
OwnedState state_over(const std::vector<float>& scores, const std::vector<float>& values, int tokens, int begin,
                      int end) {
  OwnedState state;
  state.view().clear(kRows);
  for (int r = 0; r < kRows; ++r) {
    if (begin == end) continue;
    state.max[r] = *std::max_element(scores.begin() + r * tokens + begin, scores.begin() + r * tokens + end);
    for (int t = begin; t < end; ++t) {
      const float weight = std::exp(scores[r * tokens + t] - state.max[r]);
      state.sum[r] += weight;
      for (int c = 0; c < kDim; ++c) state.output[r * kDim + c] += weight * values[t * kDim + c];
    }
  }
  return state;
}

}  // namespace

TEST_CASE("softmax state: merged parts equal the whole") {
  support::Random random(support::seed());
  for (int round = 0; round < support::repeat(300); ++round) {
    const int tokens = 1 + random.below(60);
    const double spread = round % 3 == 0 ? 0.1 : round % 3 == 1 ? 5.0 : 80.0;
    const auto scores = support::float_rows(random.next(), kRows, tokens, spread);
    const auto values = support::float_rows(random.next(), tokens, kDim);
    OwnedState merged;
    merged.view().clear(kRows);
    for (int begin = 0; begin < tokens;) {
      const int end = std::min(tokens, begin + random.below(20));  // empty parts included
      OwnedState part = state_over(scores, values, tokens, begin, end);
      merged.view().merge(part.view(), kRows);
      begin = end;
    }
    for (int r = 0; r < kRows; ++r) {
      const auto row = scores.begin() + r * tokens;
      const double highest = *std::max_element(row, row + tokens);
      double sum = 0.0, magnitude[kDim] = {}, expected[kDim] = {};
      for (int t = 0; t < tokens; ++t) {
        const double weight = std::exp(row[t] - highest);
        sum += weight;
        for (int c = 0; c < kDim; ++c) {
          expected[c] += weight * values[t * kDim + c];
          magnitude[c] += weight * std::fabs(values[t * kDim + c]);
        }
      }
      float output[kDim];
      merged.view().write(r, output);
      CHECK(merged.max[r] == highest);
      for (int c = 0; c < kDim; ++c) {
        // Each term passes an exp of a rounded argument (8 + 40 units; what is further than 40 below the maximum does
        // not count), up to tokens merges with an exp and two roundings each, and tokens additions; sum likewise.
        const double bound = (2 * 48.0 + 12.0 * tokens) * 0x1p-24 * magnitude[c] / sum + 1e-12;
        CHECK_MESSAGE(std::fabs(output[c] - expected[c] / sum) <= bound, "round ", round, ", tokens ", tokens);
      }
    }
  }
}

TEST_CASE("softmax state: a state that saw nothing is neutral on both sides") {
  const std::vector<float> scores = {1.0f, -2.0f, 3.0f, 0.5f, 0.5f, 0.5f}, values = support::float_rows(1, 2, kDim);
  const OwnedState seen = state_over(scores, values, 2, 0, 2);
  OwnedState empty, left = seen, right;
  empty.view().clear(kRows);
  right.view().clear(kRows);
  left.view().merge(empty.view(), kRows);
  OwnedState copy = seen;
  right.view().merge(copy.view(), kRows);
  CHECK(left.max == seen.max);
  CHECK(left.sum == seen.sum);
  CHECK(left.output == seen.output);
  CHECK(right.max == seen.max);
  CHECK(right.sum == seen.sum);
  CHECK(right.output == seen.output);
}
