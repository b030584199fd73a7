// The linear algebra under codebooks, checked by what its results must satisfy.
#include "calibrate/commvq/linear.h"

#include <cmath>
#include <complex>
#include <vector>

#include "calibrate/commvq/hermitian.h"
#include "codecs/commvq/products.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/formats.h"

namespace {

std::vector<double> doubles(uint64_t seed, size_t count) {
  support::Random random(seed);
  std::vector<double> result(count);
  for (double& x : result) x = random.normal();
  return result;
}

}  // namespace

TEST_CASE("commvq linear: products and transposition") {
  for (const int rows : {1, 33, 70}) {
    for (const int columns : {1, 16, 37}) {
      const int depth = 50;
      const auto a = support::float_rows(support::seed(), rows, depth),
                 b = support::float_rows(support::seed() + 1, columns, depth);
      const auto bias = support::float_rows(support::seed() + 2, 1, columns);
      std::vector<float> found(static_cast<size_t>(rows) * columns), plain(found.size());
      kvasir::commvq::multiply(*support::scalar_backend().codebooks, a.data(), rows, b.data(), columns, depth,
                               bias.data(), found.data());
      kvasir::commvq::multiply(*support::scalar_backend().codebooks, a.data(), rows, b.data(), columns, depth, nullptr,
                               plain.data());
      for (int m = 0; m < rows; ++m) {
        for (int n = 0; n < columns; ++n) {
          double sum = 0.0;
          for (int k = 0; k < depth; ++k) sum += 1.0 * a[m * depth + k] * b[n * depth + k];
          CHECK(std::fabs(plain[m * columns + n] - sum) < 1e-4);
          CHECK(std::fabs(found[m * columns + n] - sum - bias[n]) < 1e-4);
        }
      }
      std::vector<float> turned(a.size());
      kvasir::commvq::transpose(a.data(), rows, depth, turned.data());
      for (int m = 0; m < rows; ++m) {
        for (int k = 0; k < depth; ++k) REQUIRE(turned[k * rows + m] == a[m * depth + k]);
      }
    }
  }
}

TEST_CASE("commvq linear: symmetric systems") {
  for (const int n : {1, 5, 32, 33, 100}) {
    const int columns = 70;
    const auto factor = doubles(support::seed(), static_cast<size_t>(n) * (n + 3));
    const auto x = doubles(support::seed() + 1, static_cast<size_t>(n) * columns);
    std::vector<double> a(static_cast<size_t>(n) * n, 0.0), b(x.size(), 0.0);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        for (int k = 0; k < n + 3; ++k) a[i * n + j] += factor[i * (n + 3) + k] * factor[j * (n + 3) + k];
        for (int c = 0; c < columns; ++c) b[i * columns + c] += a[i * n + j] * x[j * columns + c];
      }
    }
    // The lower triangle is not read.
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < i; ++j) a[i * n + j] = 1e9;
    }
    kvasir::commvq::solve_symmetric(n, a, columns, b);
    for (size_t i = 0; i < x.size(); ++i) REQUIRE(std::fabs(b[i] - x[i]) < 1e-6);
  }
}

TEST_CASE("commvq linear: Hermitian systems, and unknowns without an equation") {
  using Complex = std::complex<double>;
  const int n = 24, columns = 5;
  const auto parts = doubles(support::seed(), 2 * n * n), values = doubles(support::seed() + 1, 2 * n * columns);
  const auto at = [&](int i, int k) { return Complex(parts[2 * (i * n + k)], parts[2 * (i * n + k) + 1]); };
  // Unknown 7 appears nowhere.
  std::vector<Complex> matrix(n * n), x(n * columns), rhs(n * columns);
  for (int i = 0; i < n; ++i) {
    for (int c = 0; c < columns; ++c) {
      x[i * columns + c] =
          i == 7 ? Complex() : Complex(values[2 * (i * columns + c)], values[2 * (i * columns + c) + 1]);
    }
  }
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      for (int k = 0; k < n && i != 7 && j != 7; ++k) matrix[i * n + j] += at(i, k) * std::conj(at(j, k));
      for (int c = 0; c < columns; ++c) rhs[i * columns + c] += matrix[i * n + j] * x[j * columns + c];
    }
  }
  kvasir::commvq::solve_hermitian(n, matrix, columns, rhs);
  for (int i = 0; i < n * columns; ++i) CHECK(std::abs(rhs[i] - x[i]) < 1e-6);
}

TEST_CASE("commvq linear: eigenvectors") {
  for (const int n : {16, 48, 131}) {
    for (const bool singular : {false, true}) {
      const auto factor = doubles(support::seed(), static_cast<size_t>(n) * n);
      const int rank = singular ? n / 3 : n;
      std::vector<double> a(static_cast<size_t>(n) * n, 0.0), values, vectors;
      for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
          for (int k = 0; k < rank; ++k) a[i * n + j] += factor[i * n + k] * factor[j * n + k];
        }
      }
      kvasir::commvq::eigenvectors(n, a, values, vectors);
      const double size = values[0];
      for (int k = 0; k < n; ++k) {
        if (k > 0) CHECK(values[k] <= values[k - 1]);
        if (k >= rank) CHECK(std::fabs(values[k]) < 1e-10 * size);
        for (int i = 0; i < n; ++i) {
          double image = 0.0, product = 0.0;
          for (int j = 0; j < n; ++j) {
            image += a[i * n + j] * vectors[k * n + j];
            product += vectors[k * n + j] * vectors[i * n + j];
          }
          REQUIRE(std::fabs(image - values[k] * vectors[k * n + i]) < 1e-10 * size);
          REQUIRE(std::fabs(product - (i == k)) < 1e-11);
        }
      }
    }
  }
  // Nothing to do.
  std::vector<double> diagonal(16 * 16, 0.0), values, vectors;
  for (int i = 0; i < 16; ++i) diagonal[i * 17] = i % 4;
  kvasir::commvq::eigenvectors(16, diagonal, values, vectors);
  for (int i = 0; i < 16; ++i) CHECK(values[i] == 3 - i / 4);
}
