// The loops of CommVQ: all levels give the same bits, and those are right.
#include <cmath>
#include <string>
#include <vector>

#include "base/codebook.h"
#include "kvasir/backend.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/formats.h"

namespace {

using Kernels = kvasir::CodebookKernels;

// Calls `test` with the verbs of every level that can run here, "scalar" last.
template <class Test>
void for_each_level(Test test) {
  int levels = 0;
  for (const kvasir::Backend* backend : support::available_backends()) {
    CAPTURE(backend->name);
    test(*backend->codebooks);
    ++levels;
  }
  CHECK(levels >= 1);
}

const Kernels& scalar() { return *support::scalar_backend().codebooks; }

}  // namespace

TEST_CASE("commvq kernels: products") {
  for (const int count : {1, 3, 7, 64}) {
    for (const int width : {32, 48, 128}) {
      const int depth = 80, stride = 96;
      const auto rows = support::float_rows(support::seed(), count, stride);
      const auto columns = support::float_rows(support::seed() + 1, depth, width);
      std::vector<float> expected(static_cast<size_t>(count) * width);
      scalar().products(rows.data(), count, stride, depth, columns.data(), width, expected.data());
      for (int r = 0; r < count; ++r) {
        for (int n = 0; n < width; ++n) {
          double sum = 0.0, size = 0.0;
          for (int k = 0; k < depth; ++k) {
            const double term = 1.0 * rows[r * stride + k] * columns[k * width + n];
            sum += term, size += std::fabs(term);
          }
          REQUIRE(std::fabs(expected[static_cast<size_t>(r) * width + n] - sum) <= (depth + 1) * 6e-8 * size);
        }
      }
      for_each_level([&](const Kernels& kernels) {
        std::vector<float> found(expected.size());
        kernels.products(rows.data(), count, stride, depth, columns.data(), width, found.data());
        CHECK(found == expected);
      });
    }
  }
}

TEST_CASE("commvq kernels: nearest, the first of equals") {
  for (const int entries : {16, 32, 64}) {
    const int count = 5;
    auto products = support::float_rows(support::seed(), count, 2 * entries);
    auto cross = support::float_rows(support::seed() + 1, entries, entries);
    // Equal everywhere: the first of all. A tie of two: the earlier one.
    for (int i = 0; i < 2 * entries; ++i) products[i] = 0.5f, products[2 * entries + i] = 0.0f;
    cross[entries + 9] = cross[3 * entries + 2] = -50.0f;
    auto flat = cross;
    for (float& x : flat) x = 1.0f;
    for_each_level([&](const Kernels& kernels) {
      int codes[count];
      float scores[count];
      kernels.nearest(products.data(), count, entries, cross.data(), codes, scores);
      CHECK(codes[1] == entries + 9);
      for (int r = 0; r < count; ++r) {
        int best = 0;
        float least = 1e30f;
        for (int code = 0; code < entries * entries; ++code) {
          const float* p = products.data() + r * 2 * entries;
          const float score = (cross[code] + p[entries + code % entries]) + p[code / entries];
          if (score < least) least = score, best = code;
        }
        CHECK(codes[r] == best);
        CHECK(scores[r] == least);
      }
      kernels.nearest(products.data(), 1, entries, flat.data(), codes, scores);
      CHECK(codes[0] == 0);
      CHECK(scores[0] == 2.0f);
    });
  }
}

TEST_CASE("commvq kernels: soft assignment") {
  for (const int entries : {16, 32, 64}) {
    for (const float temperature : {10.0f, 0.5f, 0.02f, 1e-4f, 1e-9f}) {
      const auto products = support::float_rows(support::seed(), 1, 2 * entries);
      const auto cross = support::float_rows(support::seed() + 1, entries, entries, 0.3);
      // Such that distances are about 3, and none is imaginary.
      const float squared = 20.0f;
      double least = 1e30, total = 0.0;
      std::vector<double> weights;
      for (int code = 0; code < entries * entries; ++code) {
        weights.push_back(
            std::sqrt(1.0 * cross[code] + products[entries + code % entries] + products[code / entries] + squared));
        least = std::min(least, weights.back());
      }
      for (double& w : weights) total += w = std::exp((least - w) / temperature);
      // A distance has an error of a few roundings of its square; weights have it divided by the temperature.
      const double tolerance = 1e-6 + 4e-6 / temperature;
      std::vector<float> joint(weights.size(), 1.0f), marginals(2 * entries, -1.0f);
      scalar().soften(products.data(), entries, cross.data(), squared, temperature, joint.data(), marginals.data());
      std::vector<double> sums(2 * entries, 0.0);
      double mass = 0.0;
      for (size_t i = 0; i < weights.size(); ++i) {
        const double found = joint[i] - 1.0, w = weights[i] / total;
        if (tolerance < 0.1) CHECK(std::fabs(found - w) <= tolerance * w + 1.3e-7);
        mass += found;
        sums[i / entries] += found;
        sums[entries + i % entries] += found;
      }
      CHECK(mass == doctest::Approx(1.0).epsilon(1e-5));
      for (int i = 0; i < 2 * entries; ++i) CHECK(std::fabs(marginals[i] - sums[i]) <= 64 * 1.3e-7);
      for_each_level([&](const Kernels& kernels) {
        std::vector<float> found(weights.size(), 1.0f), sides(2 * entries, -1.0f);
        const float score =
            kernels.soften(products.data(), entries, cross.data(), squared, temperature, found.data(), sides.data());
        CHECK(score == doctest::Approx(least * least - squared).epsilon(1e-5));
        CHECK(found == joint);
        CHECK(sides == marginals);
      });
    }
  }
  // A point that is its own centre, where rounding makes the squared distance negative.
  const std::vector<float> products(32, -0.5f), cross(256, 0.9999999f);
  std::vector<float> joint(256, 0.0f), marginals(32);
  for_each_level([&](const Kernels& kernels) {
    std::fill(joint.begin(), joint.end(), 0.0f);
    kernels.soften(products.data(), 16, cross.data(), 0.0f, 1e-3f, joint.data(), marginals.data());
    for (const float w : joint) CHECK(w == 1.0f / 256);
  });
}

TEST_CASE("commvq kernels: weighted sums of rows") {
  const int count = 9, entries = 32, width = 48, stride = 64;
  auto weights = support::float_rows(support::seed(), count, entries);
  for (size_t i = 0; i < weights.size(); i += 3) weights[i] = 0.0f;
  const auto rows = support::float_rows(support::seed() + 1, count, stride);
  const auto before = support::float_rows(support::seed() + 2, entries, width);
  auto expected = before;
  scalar().accumulate(weights.data(), count, entries, rows.data(), stride, width, expected.data());
  for (int e = 0; e < entries; ++e) {
    for (int c = 0; c < width; ++c) {
      double sum = before[e * width + c];
      for (int r = 0; r < count; ++r) sum += 1.0 * weights[r * entries + e] * rows[r * stride + c];
      CHECK(std::fabs(expected[e * width + c] - sum) < 1e-5);
    }
  }
  for_each_level([&](const Kernels& kernels) {
    auto found = before;
    kernels.accumulate(weights.data(), count, entries, rows.data(), stride, width, found.data());
    CHECK(found == expected);
  });
}

TEST_CASE("commvq kernels: flips lower the objective until none can") {
  const int count = 64, dim = 40;
  const auto rows = support::float_rows(support::seed(), count, dim);
  const auto x = support::float_rows(support::seed() + 1, 1, dim, 3.0);
  std::vector<float> gram(count * count), diagonal(count), slopes(count), start(count);
  for (int i = 0; i < count; ++i) {
    double h = 0.0;
    for (int c = 0; c < dim; ++c) h += 1.0 * rows[i * dim + c] * x[c];
    start[i] = static_cast<float>(-h);
    for (int j = 0; j < count; ++j) {
      double product = 0.0;
      for (int c = 0; c < dim; ++c) product += 1.0 * rows[i * dim + c] * rows[j * dim + c];
      gram[i * count + j] = static_cast<float>(product);
    }
    diagonal[i] = gram[i * count + i];
  }
  const auto error = [&](const std::vector<float>& signs) {
    double sum = 0.0;
    for (int c = 0; c < dim; ++c) {
      double rest = x[c];
      for (int i = 0; i < count; ++i) rest -= signs[i] < 0.0f ? rows[i * dim + c] : 0.0f;
      sum += rest * rest;
    }
    return sum;
  };
  // One flip at a time: each is the best there is.
  std::vector<float> signs(count, 1.0f);
  slopes = start;
  int steps = 0;
  double before = error(signs);
  while (scalar().flip(gram.data(), diagonal.data(), count, 1, slopes.data(), signs.data()) == 1) {
    const double after = error(signs);
    CHECK(after < before);
    before = after;
    REQUIRE(++steps < 1000);
  }
  CHECK(steps > 5);
  for (int i = 0; i < count; ++i) {
    auto other = signs;
    other[i] = -other[i];
    CHECK(error(other) >= before * (1 - 1e-5));
  }
  const auto last = signs;
  for_each_level([&](const Kernels& kernels) {
    std::vector<float> found(count, 1.0f), own = start;
    CHECK(kernels.flip(gram.data(), diagonal.data(), count, 1000, own.data(), found.data()) == steps);
    CHECK(found == last);
    CHECK(own == slopes);
  });
}

TEST_CASE("commvq kernels: bits by thresholds") {
  // Rows 8, 4, 2 and 1 of one direction, behind a constant: the four bits of a uniform quantiser.
  const int count = 16;
  std::vector<float> rows(count, 0.0f), gram, diagonal, thresholds(count, 0.5f);
  rows[0] = -7.5f, rows[1] = 8.0f, rows[2] = 4.0f, rows[3] = 2.0f, rows[4] = 1.0f;
  thresholds[0] = -65504.0f;
  for (int n = 1; n <= 4; ++n) thresholds[n] = 1.0f - 0.5f / rows[n];
  for (const float a : rows) {
    for (const float b : rows) gram.push_back(a * b);
    diagonal.push_back(a * a);
  }
  // Bounds are whole numbers: the nearest points lie 1/128 beside them, so that a threshold which is off is seen.
  for (float x = -9.25f + 1.0f / 128; x < 9.5f; x += 1.0f / 64) {
    for_each_level([&](const Kernels& kernels) {
      std::vector<float> slopes, signs(count, 1.0f);
      for (const float a : rows) slopes.push_back(-a * x);
      kernels.decide(gram.data(), diagonal.data(), thresholds.data(), count, slopes.data(), signs.data());
      float value = 0.0f;
      for (int n = 0; n < count; ++n) value += signs[n] < 0.0f ? rows[n] : 0.0f;
      CHECK(signs[0] == -1.0f);
      CHECK(std::fabs(value - std::min(std::max(x, -7.5f), 7.5f)) <= 0.5f);
      // Slopes are those of what is left.
      for (int n = 0; n < count; ++n) CHECK(slopes[n] == rows[n] * (value - x));
    });
  }
}
