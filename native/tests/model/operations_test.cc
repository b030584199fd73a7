// Norms, RoPE, SwiGLU and sums, against double precision.
#include <cmath>
#include <vector>

#include "kvasir/model.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/errors.h"
#include "support/guarded.h"

using kvasir::ErrorCode;

// The scale is rounded once, and two products follow: three roundings.
TEST_CASE("model: rms_norm, also in place") {
  for (const int width : {1, 3, 64, 2048}) {
    for (const int rows : {1, 5, 100}) {
      auto in = support::float_rows(rows, rows, width);
      const auto weight = support::float_rows(2, 1, width);
      support::Guarded<float> out(in.size());
      kvasir::rms_norm(in.data(), weight.data(), 1e-5, rows, width, out.data());
      int wrong = 0;
      for (int r = 0; r < rows; ++r) {
        double squares = 0;
        for (int i = 0; i < width; ++i) squares += static_cast<double>(in[r * width + i]) * in[r * width + i];
        const double scale = 1 / std::sqrt(squares / width + 1e-5);
        for (int i = 0; i < width; ++i) {
          const double expected = in[r * width + i] * scale * weight[i];
          wrong += !(std::fabs(out[r * width + i] - expected) <= 4 * 0x1p-24 * std::fabs(expected));
        }
      }
      CHECK(wrong == 0);
      CHECK(out.guards_intact());
      kvasir::rms_norm(in.data(), weight.data(), 1e-5, rows, width, in.data());
      CHECK(std::equal(in.begin(), in.end(), out.data()));
    }
  }
  float x = 1;
  support::error_of(ErrorCode::kInvalidArgument, [&] { kvasir::rms_norm(&x, &x, NAN, 1, 1, &x); });
  support::error_of(ErrorCode::kInvalidArgument, [&] { kvasir::rms_norm(&x, &x, 0, 0, 1, &x); });
  support::error_of(ErrorCode::kInvalidArgument, [&] { kvasir::rms_norm(&x, nullptr, 0, 1, 1, &x); });
}

TEST_CASE("model: RoPE turns each token by its own position, in both pairings") {
  const int heads = 3, dim = 64, half = dim / 2, tokens = 5;
  const int positions[tokens] = {0, 1, 127, 5000, 1000000};
  std::vector<double> frequencies(half);
  for (int j = 0; j < half; ++j) frequencies[j] = std::pow(10000.0, -2.0 * j / dim);
  const double magnitude = 1.25;
  std::vector<float> turns(tokens * dim);
  kvasir::rope_turns(frequencies.data(), dim, magnitude, positions, tokens, turns.data());
  for (const auto pairs : {kvasir::RopePairs::kHalves, kvasir::RopePairs::kNeighbours}) {
    const auto in = support::float_rows(4, tokens, heads * dim);
    support::Guarded<float> rows(in.size());
    rows.fill(in.data());
    kvasir::rope_turn(turns.data(), tokens, heads, dim, pairs, rows.data());
    int wrong = 0;
    for (int t = 0; t < tokens; ++t) {
      for (int h = 0; h < heads; ++h) {
        for (int j = 0; j < half; ++j) {
          const int a = pairs == kvasir::RopePairs::kHalves ? j : 2 * j;
          const int b = pairs == kvasir::RopePairs::kHalves ? j + half : 2 * j + 1;
          const float* x = in.data() + (t * heads + h) * dim;
          const float* y = rows.data() + (t * heads + h) * dim;
          const double cosine = magnitude * std::cos(positions[t] * frequencies[j]);
          const double sine = magnitude * std::sin(positions[t] * frequencies[j]);
          // Each of two products is off by two roundings, their sum by a third.
          const double bound = 3 * 0x1p-24 * magnitude * (std::fabs(x[a]) + std::fabs(x[b]));
          wrong += !(std::fabs(y[a] - (x[a] * cosine - x[b] * sine)) <= bound);
          wrong += !(std::fabs(y[b] - (x[a] * sine + x[b] * cosine)) <= bound);
        }
      }
    }
    CHECK(wrong == 0);
    CHECK(rows.guards_intact());
  }
  support::error_of(ErrorCode::kInvalidArgument, [&] {
    kvasir::rope_turn(turns.data(), tokens, heads, dim, static_cast<kvasir::RopePairs>(2), turns.data());
  });
  support::error_of(ErrorCode::kInvalidArgument,
                    [&] { kvasir::rope_turns(frequencies.data(), 24, 1, positions, tokens, turns.data()); });
}

// e^x is off by 2e-7, and sum, quotient and products add four roundings.
TEST_CASE("model: SwiGLU and sums of rows") {
  const int count = 70001;
  const auto gate = support::float_rows(1, 1, count, 10.0);
  const auto up = support::float_rows(2, 1, count);
  support::Guarded<float> out(count);
  kvasir::swiglu(gate.data(), up.data(), count, out.data());
  int wrong = 0;
  for (int i = 0; i < count; ++i) {
    const double expected = gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
    wrong += !(std::fabs(out[i] - expected) <= 5e-7 * std::fabs(expected));
  }
  CHECK(wrong == 0);
  CHECK(out.guards_intact());

  std::vector<float> sum = gate;
  kvasir::add_rows(up.data(), count, sum.data());
  for (int i = 0; i < count; ++i) wrong += sum[i] != gate[i] + up[i];
  CHECK(wrong == 0);
  support::error_of(ErrorCode::kInvalidArgument, [&] { kvasir::add_rows(up.data(), 0, sum.data()); });
}
