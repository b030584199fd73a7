// Key scaling: RoPE, maxima and errors against their definitions in double precision, and the reason for it all:
// factors from interpolated positions serve positions that the calibration text did not reach.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kvasir/calibrate.h"
#include "kvasir/error.h"
#include "kvasir/rope.h"
#include "reference/calibrate.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/errors.h"

namespace {

using kvasir::RopePairs;
constexpr double kBase = 10000.0;

std::vector<double> frequencies(int head_dim) {
  std::vector<double> result(head_dim / 2);
  kvasir::rope_frequencies(kBase, head_dim, result.data());
  return result;
}

// rows turned by the library at positions scale * (first + t).
std::vector<float> turned(std::vector<float> rows, int heads, int head_dim, RopePairs pairs, int64_t first,
                          double scale) {
  const int64_t tokens = static_cast<int64_t>(rows.size()) / (heads * head_dim);
  kvasir::rotate(rows.data(), tokens, heads, head_dim, frequencies(head_dim).data(), pairs, first, scale);
  return rows;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = a.size() == b.size() ? 0.0 : 1e300;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, std::fabs(1.0 * a[i] - b[i]));
  return most;
}

struct Sample {
  int tokens, query_tokens, query_heads, kv_heads, head_dim;
  std::vector<float> keys, values, queries;

  float softmax_scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }

  std::vector<double> errors(int bits, int group, const std::vector<float>& candidates, double* energy) const {
    const int count = static_cast<int>(candidates.size()) / std::abs(kv_heads * head_dim);
    std::vector<double> result(count, -1.0);
    kvasir::key_scaling_errors(keys.data(), values.data(), tokens, queries.data(), query_tokens, query_heads, kv_heads,
                               head_dim, softmax_scale(), bits, group, candidates.data(), count, result.data(), energy);
    return result;
  }
};

Sample random_sample(uint64_t seed, int tokens, int query_tokens, int query_heads, int kv_heads, int head_dim) {
  return {tokens,
          query_tokens,
          query_heads,
          kv_heads,
          head_dim,
          support::half_rows(support::Profile::kOutliers, seed, tokens, kv_heads * head_dim),
          support::float_rows(seed + 1, tokens, kv_heads * head_dim),
          support::float_rows(seed + 2, query_tokens, query_heads * head_dim, 0.5)};
}

std::vector<float> factors(uint64_t seed, int count) {
  support::Random random(seed);
  std::vector<float> lambda(count);
  for (float& x : lambda) x = static_cast<float>(std::exp2(6.0 * random.uniform() - 3.0));
  return lambda;
}

}  // namespace

TEST_CASE("key scaling: rotation is RoPE") {
  const int heads = 2, d = 64, tokens = 5;
  const auto rows = support::float_rows(support::seed(), tokens, heads * d);
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
    const auto result = turned(rows, heads, d, pairs, 1000, 4.0);
    for (int t = 0; t < tokens; ++t) {
      for (int h = 0; h < heads; ++h) {
        const size_t at = static_cast<size_t>(t * heads + h) * d;
        const std::vector<double> row(rows.begin() + at, rows.begin() + at + d);
        const auto expected = reference::rotated(row, kBase, pairs == RopePairs::kHalves, 4.0 * (1000 + t));
        for (int c = 0; c < d; ++c) CHECK(std::fabs(result[at + c] - expected[c]) < 1e-6);
      }
    }
    // Interpolation of rows that RoPE has turned already; and back to what they were.
    const auto once = turned(rows, heads, d, pairs, 7, 1.0);
    CHECK(largest_difference(turned(once, heads, d, pairs, 7, 3.0), turned(rows, heads, d, pairs, 7, 4.0)) < 2e-6);
    CHECK(largest_difference(turned(once, heads, d, pairs, 7, -1.0), rows) < 2e-6);
  }
}

TEST_CASE("key scaling: factors are powers of the maxima of a pair, clamped") {
  const int heads = 2, d = 32, tokens = 9;
  auto keys = support::float_rows(support::seed(), tokens, heads * d);
  for (int t = 0; t < tokens; ++t) {
    // Channels that are always 0, with their partners of either pairing.
    keys[t * heads * d + 2] = keys[t * heads * d + 18] = keys[t * heads * d + 3] = keys[t * heads * d + 19] = 0.0f;
  }
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
    std::vector<float> maxima(heads * d, 0.0f);
    kvasir::raise_key_maxima(keys.data(), 4, heads, d, pairs, maxima.data());
    kvasir::raise_key_maxima(keys.data() + 4 * heads * d, tokens - 4, heads, d, pairs, maxima.data());
    for (int h = 0; h < heads; ++h) {
      for (int c = 0; c < d; ++c) {
        const int partner = pairs == RopePairs::kHalves ? (c + d / 2) % d : c ^ 1;
        float expected = 0.0f;
        for (int t = 0; t < tokens; ++t) {
          for (const int i : {c, partner}) expected = std::max(expected, std::fabs(keys[(t * heads + h) * d + i]));
        }
        CHECK(maxima[h * d + c] == expected);
      }
    }
    std::vector<float> lambda(heads * d);
    kvasir::scaling_factors(maxima.data(), heads * d, 0.35, lambda.data());
    for (int i = 0; i < heads * d; ++i) {
      if (maxima[i] == 0.0f) {
        CHECK(lambda[i] == 1.0f);
      } else {
        CHECK(lambda[i] == doctest::Approx(std::pow(static_cast<double>(maxima[i]), 0.35)).epsilon(1e-6));
      }
    }
    kvasir::scaling_factors(maxima.data(), heads * d, 0.0, lambda.data());
    CHECK(lambda == std::vector<float>(heads * d, 1.0f));
  }
  const float extremes[] = {1e-6f, 1e6f};
  float lambda[2];
  kvasir::scaling_factors(extremes, 2, 1.0, lambda);
  CHECK(lambda[0] == 1e-4f);
  CHECK(lambda[1] == 1e4f);
}

TEST_CASE("key scaling: factors shared by pairs commute with RoPE") {
  const int heads = 2, d = 128, tokens = 64;
  const auto keys = support::float_rows(support::seed(), tokens, heads * d);
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
    std::vector<float> maxima(heads * d, 0.0f), lambda(heads * d);
    kvasir::raise_key_maxima(keys.data(), tokens, heads, d, pairs, maxima.data());
    kvasir::scaling_factors(maxima.data(), heads * d, 0.7, lambda.data());
    auto before = keys, after = turned(keys, heads, d, pairs, 500, 1.0);
    for (size_t i = 0; i < keys.size(); ++i) {
      before[i] /= lambda[i % lambda.size()];
      after[i] /= lambda[i % lambda.size()];
    }
    CHECK(largest_difference(turned(before, heads, d, pairs, 500, 1.0), after) < 1e-6);
    // Factors of another pairing do not: the check can fail.
    const RopePairs other = pairs == RopePairs::kHalves ? RopePairs::kNeighbours : RopePairs::kHalves;
    CHECK(largest_difference(turned(before, heads, d, other, 500, 1.0), turned(keys, heads, d, other, 500, 1.0)) >
          1e-2);
  }
}

TEST_CASE("key scaling: errors equal the definition in double precision") {
  support::Random random(support::seed());
  for (int i = 0; i < support::repeat(12); ++i) {
    const int kv_heads = 1 + random.below(2), query_heads = kv_heads * (1 + random.below(3));
    const int head_dim = 16 * (2 + random.below(15)), tokens = 1 + random.below(70);
    const int query_tokens = 1 + random.below(tokens);
    const int bits = 1 + random.below(8), width = kv_heads * head_dim;
    const int groups[] = {0, 32, 64};
    const int group = groups[random.below(3)];
    const Sample s = random_sample(random.next(), tokens, query_tokens, query_heads, kv_heads, head_dim);
    const auto candidates = factors(random.next(), 3 * width);
    double energy = 0.0;
    const auto errors = s.errors(bits, group, candidates, &energy);
    for (int c = 0; c < 3; ++c) {
      const std::vector<float> lambda(candidates.begin() + c * width, candidates.begin() + (c + 1) * width);
      const auto expected =
          reference::key_scaling_error({s.keys, tokens, kv_heads, head_dim}, {s.values, tokens, kv_heads, head_dim},
                                       {s.queries, query_tokens, query_heads, head_dim}, s.softmax_scale(), bits,
                                       std::min(group == 0 ? 128 : group, head_dim), lambda);
      // Scores of magnitude s carry float32 rounding of about 1e-7 s * sqrt(d); a first token sees no other: error 0.
      CHECK_MESSAGE(std::fabs(errors[c] - expected.error) <= 1e-4 * expected.error + 1e-12 * expected.energy, "seed ",
                    support::seed(), ", case ", i, ", d=", head_dim, ", bits ", bits, ": ", errors[c], " ",
                    expected.error);
      CHECK(energy == doctest::Approx(expected.energy).epsilon(1e-5));
    }
  }
}

TEST_CASE("key scaling: errors do not depend on the number of threads") {
  const Sample s = random_sample(support::seed(), 90, 50, 4, 2, 64);
  const auto candidates = factors(1, 4 * 128);
  std::vector<double> results[2];
  double energies[2];
  for (const int threads : {1, 3}) {
    const support::ThreadsGuard guard(threads);
    results[threads / 2] = s.errors(3, 0, candidates, &energies[threads / 2]);
  }
  CHECK(results[0] == results[1]);
  CHECK(energies[0] == energies[1]);
}

namespace {

// Keys before RoPE as trained models have them: noise, and a bias in a few pairs that turn slowly and that queries
// hardly look at. The bias points between the axes, so that near position 0 neither channel shows its full size; as
// lambda is shared by the pair, sqrt(2) is the most that a short text can miss.
Sample slow_outliers(uint64_t seed, int tokens, int head_dim) {
  Sample s = random_sample(seed, tokens, tokens, 2, 1, head_dim);
  s.keys = support::float_rows(seed + 3, tokens, head_dim);
  s.queries = support::float_rows(seed + 4, tokens, 2 * head_dim, 0.3);
  support::Random random(seed + 5);
  for (const int pair : {24, 25, 26, 27}) {
    const double bias = (pair % 2 == 0 ? 24.0 : -24.0) * std::sqrt(0.5) * (1.0 + 0.3 * random.uniform());
    for (const int channel : {pair, pair + head_dim / 2}) {
      for (int t = 0; t < tokens; ++t) s.keys[t * head_dim + channel] += static_cast<float>(bias);
      for (int t = 0; t < 2 * tokens; ++t) s.queries[t * head_dim + channel] *= 0.1f;
    }
  }
  return s;
}

Sample at_positions(Sample s, int64_t first, double scale) {
  s.keys = turned(s.keys, s.kv_heads, s.head_dim, RopePairs::kHalves, first, scale);
  s.queries = turned(s.queries, s.query_heads, s.head_dim, RopePairs::kHalves, first, scale);
  return s;
}

// The factors with the best alpha at positions scale * t.
std::vector<float> calibrated(const Sample& sample, double scale, int bits) {
  const Sample s = at_positions(sample, 0, scale);
  const int width = s.kv_heads * s.head_dim;
  std::vector<float> maxima(width, 0.0f), all;
  kvasir::raise_key_maxima(s.keys.data(), s.tokens, s.kv_heads, s.head_dim, RopePairs::kHalves, maxima.data());
  for (int i = 0; i <= 20; ++i) {
    std::vector<float> lambda(width);
    kvasir::scaling_factors(maxima.data(), width, i / 20.0, lambda.data());
    all.insert(all.end(), lambda.begin(), lambda.end());
  }
  double energy;
  const auto errors = s.errors(bits, 0, all, &energy);
  const auto best = std::min_element(errors.begin(), errors.end()) - errors.begin();
  return std::vector<float>(all.begin() + best * width, all.begin() + (best + 1) * width);
}

}  // namespace

TEST_CASE("key scaling: interpolated positions serve far positions better") {
  // 128 tokens, and pairs whose periods are 6,300 to 15,000 tokens.
  const int tokens = 128, d = 64, bits = 2;
  double none = 0.0, plain = 0.0, interpolated = 0.0;
  int wins = 0, cases = 0;
  for (uint64_t i = 0; i < 8; ++i) {
    const Sample s = slow_outliers(support::seed() + 100 * i, tokens, d);
    auto candidates = calibrated(s, 1.0, bits);
    const auto better = calibrated(s, 4.0, bits);
    candidates.insert(candidates.end(), better.begin(), better.end());
    candidates.insert(candidates.end(), d, 1.0f);
    for (const int64_t first : {600, 800, 1200}) {
      double energy;
      const auto errors = at_positions(s, first, 1.0).errors(bits, 0, candidates, &energy);
      plain += errors[0] / energy;
      interpolated += errors[1] / energy;
      none += errors[2] / energy;
      wins += errors[1] < errors[0];
      ++cases;
    }
  }
  INFO("normalised error at far positions: unscaled ", none / cases, ", s=1 ", plain / cases, ", s=4 ",
       interpolated / cases, "; s=4 wins ", wins, " of ", cases);
  CHECK(interpolated < 0.9 * plain);
  CHECK(plain < 0.1 * none);
  CHECK(wins > cases * 3 / 4);
}

TEST_CASE("key scaling: refuses what makes no sense") {
  using kvasir::ErrorCode;
  const auto invalid = [](auto call) { return support::error_of(ErrorCode::kInvalidArgument, call); };
  Sample s = random_sample(support::seed(), 20, 10, 4, 2, 32);
  const auto lambda = factors(1, 64);
  double energy;
  s.errors(2, 0, lambda, &energy);
  invalid([&] { s.errors(0, 0, lambda, &energy); });
  invalid([&] { s.errors(17, 0, lambda, &energy); });
  invalid([&] { s.errors(2, 31, lambda, &energy); });
  invalid([&] { s.errors(2, 0, {}, &energy); });
  invalid([&] { s.errors(2, 0, std::vector<float>(64, 0.0f), &energy); });
  invalid([&] { s.errors(2, 0, std::vector<float>(64, std::nanf("")), &energy); });
  invalid([&] { s.errors(2, 0, lambda, nullptr); });
  const auto changed = [&](auto change) {
    Sample other = s;
    change(other);
    invalid([&] { other.errors(2, 0, lambda, &energy); });
  };
  changed([](Sample& x) { x.tokens = 0; });
  changed([](Sample& x) { x.query_tokens = 21; });
  changed([](Sample& x) { x.query_heads = 3; });
  changed([](Sample& x) { x.kv_heads = -2; });

  double f[128];
  invalid([&] { kvasir::rope_frequencies(1.0, 64, f); });
  invalid([&] { kvasir::rope_frequencies(std::nan(""), 64, f); });
  invalid([&] { kvasir::rope_frequencies(1e4, 40, f); });
  kvasir::rope_frequencies(1e4, 32, f);
  invalid([&] { kvasir::rotate(s.keys.data(), 20, 2, 32, f, static_cast<RopePairs>(2), 0, 1.0); });
  invalid([&] { kvasir::rotate(s.keys.data(), 20, 2, 32, f, RopePairs::kHalves, 0, std::nan("")); });
  invalid([&] {
    kvasir::rotate(s.keys.data(), 20, 2, 32, f, RopePairs::kHalves, std::numeric_limits<int64_t>::max() - 5, 1.0);
  });
  invalid([&] { kvasir::rotate(nullptr, 20, 2, 32, f, RopePairs::kHalves, 0, 1.0); });
  float out[64];
  invalid([&] { kvasir::scaling_factors(lambda.data(), 64, 1.5, out); });
  const float negative = -1.0f;
  invalid([&] { kvasir::scaling_factors(&negative, 1, 0.5, out); });

  s.values[7] = std::numeric_limits<float>::infinity();
  support::error_of(ErrorCode::kNotFinite, [&] { s.errors(2, 0, lambda, &energy); });
  s.values[7] = 0.0f;
  s.keys[7] = 30000.0f;  // fine as it is, too large once divided by a small factor
  const std::vector<float> small(64, 0.01f);
  CHECK(support::error_of(ErrorCode::kNotFinite, [&] { s.errors(2, 0, small, &energy); }).find("channel 7") !=
        std::string::npos);
  s.keys[7] = std::nanf("");
  float maxima[64] = {};
  support::error_of(ErrorCode::kNotFinite,
                    [&] { kvasir::raise_key_maxima(s.keys.data(), 20, 2, 32, RopePairs::kHalves, maxima); });
}

TEST_CASE("key scaling: refuses values that no cache takes, and attention that float32 does not hold") {
  using kvasir::ErrorCode;
  const Sample s = random_sample(support::seed(), 20, 10, 4, 2, 32);
  const std::vector<float> ones(64, 1.0f);
  const auto refused = [&](auto change) {
    Sample other = s;
    change(other);
    double energy = -7.0, error = -7.0;
    const std::string text = support::error_of(ErrorCode::kNotFinite, [&] {
      kvasir::key_scaling_errors(other.keys.data(), other.values.data(), 20, other.queries.data(), 10, 4, 2, 32,
                                 other.softmax_scale(), 2, 0, ones.data(), 1, &error, &energy);
    });
    CHECK(error == -7.0);
    CHECK(energy == -7.0);
    return text;
  };
  CHECK(refused([](Sample& x) { x.values[3 * 64 + 35] = 32768.0f; }).find("token 3, head 1, channel 3") !=
        std::string::npos);
  refused([](Sample& x) { x.values[7] = -1e30f; });
  refused([](Sample& x) { x.queries[7] = std::nanf(""); });
  // Each of them is finite, and their products are not.
  refused([](Sample& x) {
    for (float& q : x.queries) q = 3e38f;
  });
  Sample most = s;
  most.values[7] = 32752.0f;
  double energy = 0.0;
  CHECK(std::isfinite(most.errors(2, 0, ones, &energy)[0]));
  CHECK(std::isfinite(energy));
}
