// Sensitivities against their definition in double precision, and what must hold for any tensor.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kvasir/backend.h"
#include "kvasir/calibrate.h"
#include "kvasir/error.h"
#include "reference/calibrate.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/errors.h"

namespace {

constexpr int kWidths[] = {1, 2, 3, 4, 8, 16};
constexpr int kWidthCount = 6;

struct Side {
  std::vector<float> rows, gradients;
  int tokens, heads, head_dim;

  Side(uint64_t seed, int tokens, int heads, int head_dim, support::Profile profile = support::Profile::kOutliers)
      : rows(support::half_rows(profile, seed, tokens, heads * head_dim)),
        gradients(support::float_rows(seed + 1, tokens, heads * head_dim, 0.1)),
        tokens(tokens),
        heads(heads),
        head_dim(head_dim) {}

  std::vector<double> sums(int axis = 1, int group = 0, const std::vector<float>& lambda = {}) const {
    std::vector<double> result(kWidthCount, -1.0);
    kvasir::sensitivities(rows.data(), gradients.data(), tokens, heads, head_dim, axis, group,
                          lambda.empty() ? nullptr : lambda.data(), kWidths, kWidthCount, result.data());
    return result;
  }
};

std::vector<float> factors(uint64_t seed, int count) {
  support::Random random(seed);
  std::vector<float> lambda(count);
  for (float& x : lambda) x = static_cast<float>(std::exp2(4.0 * random.uniform() - 2.0));
  return lambda;
}

}  // namespace

TEST_CASE("sensitivity: equals the definition in double precision") {
  support::Random random(support::seed());
  for (int i = 0; i < support::repeat(24); ++i) {
    const int head_dim = 16 * (2 + random.below(15)), heads = 1 + random.below(3);
    const int tokens = 1 + random.below(300);
    const int axis = random.below(2);
    const int groups[] = {0, 32, 64, 128};
    const int group = groups[random.below(4)];
    const uint64_t seed = random.next();
    const Side side(seed, tokens, heads, head_dim);
    const auto lambda = random.chance(0.5) ? factors(seed, heads * head_dim) : std::vector<float>();
    const auto sums = side.sums(axis, group, lambda);
    const int longest = axis == 0 ? 128 : head_dim;
    const int whole = std::min(group == 0 ? 128 : group, longest);
    const reference::Tensor rows = {side.rows, tokens, heads, head_dim};
    const reference::Tensor gradients = {side.gradients, tokens, heads, head_dim};
    for (int w = 0; w < kWidthCount; ++w) {
      const double expected = reference::sensitivity(rows, gradients, axis == 0, whole, lambda, kWidths[w]);
      // Both read back the same float32 values: only the order of double additions differs.
      CHECK_MESSAGE(std::fabs(sums[w] - expected) <= 1e-12 * expected, "seed ", support::seed(), ", case ", i,
                    ", d=", head_dim, ", axis ", axis, ", group ", group, ", bits ", kWidths[w], ": ", sums[w], " ",
                    expected);
    }
  }
}

TEST_CASE("sensitivity: a case by hand") {
  // One token: 0, 1 and thirty times 0.25. At 1 bit 0.25 becomes 0; at 2 bits (step 1/3) it becomes 1/3.
  std::vector<float> rows(32, 0.25f), gradients(32, -2.0f);
  rows[0] = 0.0f;
  rows[1] = 1.0f;
  const int widths[] = {1, 2};
  double sums[2];
  kvasir::sensitivities(rows.data(), gradients.data(), 1, 1, 32, 1, 0, nullptr, widths, 2, sums);
  CHECK(sums[0] == doctest::Approx(30 * 2 * 0.25).epsilon(1e-12));
  CHECK(sums[1] == doctest::Approx(30 * 2 * (1.0 / 3 - 0.25)).epsilon(1e-6));
  // Per channel over the one token, every group is constant and nothing is lost.
  kvasir::sensitivities(rows.data(), gradients.data(), 1, 1, 32, 0, 0, nullptr, widths, 2, sums);
  CHECK(sums[0] == 0.0);
  CHECK(sums[1] == 0.0);
}

TEST_CASE("sensitivity: falls with every bit, is additive over pages, and zero where nothing is lost") {
  const Side side(support::seed(), 384, 2, 128);
  for (const int axis : {0, 1}) {
    const auto whole = side.sums(axis);
    for (int w = 1; w < kWidthCount; ++w) CHECK(whole[w] < whole[w - 1]);
    std::vector<double> parts(kWidthCount, 0.0);
    for (int page = 0; page < 3; ++page) {
      const size_t at = static_cast<size_t>(page) * 128 * 256;
      std::vector<double> part(kWidthCount);
      kvasir::sensitivities(side.rows.data() + at, side.gradients.data() + at, 128, 2, 128, axis, 0, nullptr, kWidths,
                            kWidthCount, part.data());
      for (int w = 0; w < kWidthCount; ++w) parts[w] += part[w];
    }
    for (int w = 0; w < kWidthCount; ++w) CHECK(parts[w] == doctest::Approx(whole[w]).epsilon(1e-12));
  }
  const Side zero(support::seed(), 200, 2, 64, support::Profile::kZero);
  for (const double sum : zero.sums()) CHECK(sum == 0.0);
  Side indifferent(support::seed(), 200, 2, 64);
  indifferent.gradients.assign(indifferent.gradients.size(), 0.0f);
  for (const double sum : indifferent.sums()) CHECK(sum == 0.0);
}

TEST_CASE("sensitivity: the rounding to float16 counts as a loss") {
  // 1/3 in a constant group: the codes lose nothing, the float16 does.
  const std::vector<float> rows(32, 1.0f / 3.0f), gradients(32, 1.0f);
  const int width = 16;
  double sum = 0.0;
  kvasir::sensitivities(rows.data(), gradients.data(), 1, 1, 32, 1, 0, nullptr, &width, 1, &sum);
  CHECK(sum == doctest::Approx(32 * std::fabs(1.0f / 3.0f - reference::half_value(0x3555))).epsilon(1e-9));
}

TEST_CASE("sensitivity: does not depend on the number of threads") {
  const Side side(support::seed(), 1000, 3, 80);
  std::vector<double> one, three;
  {
    const support::ThreadsGuard guard(1);
    one = side.sums(0, 32);
  }
  {
    const support::ThreadsGuard guard(3);
    three = side.sums(0, 32);
  }
  CHECK(one == three);
}

TEST_CASE("sensitivity: refuses what makes no sense") {
  using kvasir::ErrorCode;
  Side side(support::seed(), 130, 2, 64);
  const auto call = [&](int64_t tokens, int heads, int head_dim, int axis, int group, int bits) {
    double sum;
    kvasir::sensitivities(side.rows.data(), side.gradients.data(), tokens, heads, head_dim, axis, group, nullptr, &bits,
                          1, &sum);
  };
  call(130, 2, 64, 1, 0, 2);
  support::error_of(ErrorCode::kInvalidArgument, [&] { call(0, 2, 64, 1, 0, 2); });
  support::error_of(ErrorCode::kInvalidArgument, [&] { call(-1, 2, 64, 1, 0, 2); });
  support::error_of(ErrorCode::kInvalidArgument, [&] { call(130, 0, 64, 1, 0, 2); });
  support::error_of(ErrorCode::kInvalidArgument, [&] { call(130, 2, 63, 1, 0, 2); });
  support::error_of(ErrorCode::kInvalidArgument, [&] { call(130, 2, 64, 2, 0, 2); });
  support::error_of(ErrorCode::kInvalidArgument, [&] { call(130, 2, 64, 1, 33, 2); });
  support::error_of(ErrorCode::kInvalidArgument, [&] { call(130, 2, 64, 1, 0, 0); });
  support::error_of(ErrorCode::kInvalidArgument, [&] { call(130, 2, 64, 1, 0, 17); });
  support::error_of(ErrorCode::kInvalidArgument,
                    [&] { call(std::numeric_limits<int64_t>::max() / 64, 2, 64, 1, 0, 2); });
  const std::vector<float> wrong(128, 0.0f);
  support::error_of(ErrorCode::kInvalidArgument, [&] { side.sums(1, 0, wrong); });

  side.rows[(129 * 2 + 1) * 64 + 5] = std::nanf("");
  CHECK(support::error_of(ErrorCode::kNotFinite, [&] {
          call(130, 2, 64, 1, 0, 2);
        }).find("token 129, head 1, channel 5") != std::string::npos);
  side.rows[(129 * 2 + 1) * 64 + 5] = 40000.0f;
  support::error_of(ErrorCode::kNotFinite, [&] { call(130, 2, 64, 1, 0, 2); });
  side.rows[(129 * 2 + 1) * 64 + 5] = 0.0f;
  side.gradients[3] = std::numeric_limits<float>::infinity();
  CHECK(support::error_of(ErrorCode::kNotFinite, [&] { call(130, 2, 64, 0, 0, 2); }).find("gradient") !=
        std::string::npos);
}

TEST_CASE("sensitivity: of several elements that are no numbers the first is named, for programs too") {
  const int heads = 2, d = 64, tokens = 300;
  const std::vector<float> gradients(tokens * heads * d, 1.0f), ones(heads * d, 1.0f);
  std::vector<float> rows(tokens * heads * d, 0.5f);
  rows[(150 * heads + 1) * d + 9] = 40000.0f;
  for (int t = 151; t < tokens; ++t) rows[t * heads * d] = std::nanf("");
  const int bits = 4;
  double sum = -7.0;
  for (const int axis : {0, 1}) {
    const std::string text = support::error_of(kvasir::ErrorCode::kNotFinite, [&] {
      kvasir::sensitivities(rows.data(), gradients.data(), tokens, heads, d, axis, 0, nullptr, &bits, 1, &sum);
    });
    CHECK(text.find("[token=150 head=1 channel=9 value=40000]") != std::string::npos);
    CHECK(sum == -7.0);
    // What is stored is no row where there is a factor.
    const std::vector<float> halves(heads * d, 0.5f);
    CHECK(support::error_of(kvasir::ErrorCode::kNotFinite, [&] {
            kvasir::sensitivities(rows.data(), gradients.data(), tokens, heads, d, axis, 0, halves.data(), &bits, 1,
                                  &sum);
          }).find("rows over their factors hold 80000 at token 150") != std::string::npos);
  }
  double error = -7.0, energy = -7.0;
  const std::string text = support::error_of(kvasir::ErrorCode::kNotFinite, [&] {
    kvasir::key_scaling_errors(rows.data(), gradients.data(), 151, gradients.data(), 4, heads, heads, d, 0.1f, 4, 0,
                               ones.data(), 1, &error, &energy);
  });
  CHECK(text.find("[input=keys token=150 head=1 channel=9 value=40000]") != std::string::npos);
}
