// Matrix products, against sums in double precision.
#include "kvasir/matrix.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kvasir/backend.h"
#include "kvasir/error.h"
#include "reference/half.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/formats.h"
#include "support/guarded.h"

namespace {

std::vector<uint16_t> bfloats(uint64_t seed, int count) {
  support::Random random(seed);
  std::vector<uint16_t> bits(count);
  // Any sign, magnitudes 2^-8 .. 2^4.
  for (uint16_t& x : bits) x = static_cast<uint16_t>((random.below(2) << 15) + 0x3b80 + random.below(12 * 128));
  return bits;
}

std::vector<float> widened(const std::vector<uint16_t>& bits) {
  std::vector<float> floats;
  for (const uint16_t x : bits) floats.push_back(static_cast<float>(reference::bfloat_value(x)));
  return floats;
}

// Elements that break matrix.h's bound: float32 sums of n terms, in any order, fused or not, are off by at most n + 2
// roundings of 2^-24 relative to the sum of magnitudes (second orders included while n < 2^12); the bias is a term.
int wrong_elements(const float* a, const float* b, const float* bias, int rows, int columns, int depth,
                   const float* out, int stride) {
  int wrong = 0;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      double sum = bias ? bias[c] : 0.0, magnitude = std::fabs(sum);
      for (int i = 0; i < depth; ++i) {
        const double product = static_cast<double>(a[r * depth + i]) * b[c * depth + i];
        sum += product;
        magnitude += std::fabs(product);
      }
      wrong += !(std::fabs(out[r * stride + c] - sum) <= (depth + 3) * 0x1p-24 * magnitude);
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("matrix: kernels stay within the bound and within their block, for all remainders") {
  for (const int depth : {1, 3, 15, 16, 17, 64, 100, 1023, 1024, 1025, 2100}) {
    for (const int rows : {1, 2, 3, 4, 5, 7, 11, 12, 13}) {
      for (const int columns : {1, 2, 4, 5, 6, 7, 13, 24}) {
        if (depth > 100 && rows % 4 != 1 && columns % 6 != 1) continue;
        const auto a = support::float_rows(rows + depth, rows, depth);
        const auto halves = bfloats(columns, columns * depth);
        const auto b = widened(halves);
        const auto bias = support::float_rows(3, 1, columns);
        const int stride = columns + 3;
        for (const kvasir::Backend* backend : support::available_backends()) {
          for (const bool biased : {false, true}) {
            support::Guarded<float> out(static_cast<size_t>(rows) * stride), same(out.size());
            std::fill_n(out.data(), out.size(), 9.0f);
            kvasir::MatrixBlock block = {a.data(),
                                         nullptr,
                                         rows,
                                         reinterpret_cast<const uint8_t*>(b.data()),
                                         kvasir::WeightType::kF32,
                                         static_cast<int64_t>(depth * sizeof(float)),
                                         columns,
                                         depth,
                                         biased ? bias.data() : nullptr,
                                         out.data(),
                                         stride};
            backend->matrix->product(block);
            INFO(backend->name << ": " << rows << " x " << columns << " x " << depth);
            CHECK(wrong_elements(a.data(), b.data(), block.bias, rows, columns, depth, out.data(), stride) == 0);
            int touched = 0, different = 0;
            block.b = reinterpret_cast<const uint8_t*>(halves.data());
            block.type = kvasir::WeightType::kBF16;
            block.row_bytes = depth * sizeof(uint16_t);
            block.out = same.data();
            backend->matrix->product(block);
            for (int r = 0; r < rows; ++r) {
              for (int c = 0; c < columns; ++c) different += out[r * stride + c] != same[r * stride + c];
              for (int c = columns; c < stride; ++c) touched += out[r * stride + c] != 9.0f;
            }
            CHECK(different == 0);
            CHECK(touched == 0);
            CHECK(out.guards_intact());
          }
        }
      }
    }
  }
}

TEST_CASE("matrix: the result depends neither on threads nor on the other rows and columns") {
  const int rows = 150, columns = 333, depth = 1300;
  const auto a = support::float_rows(1, rows, depth);
  const auto b = support::float_rows(2, columns, depth);
  const auto bias = support::float_rows(3, 1, columns);
  std::vector<float> expected(rows * columns), out(rows * columns);
  const int before = kvasir::threads();
  kvasir::set_threads(1);
  kvasir::matrix_product(a.data(), b.data(), bias.data(), rows, columns, depth, expected.data());
  CHECK(wrong_elements(a.data(), b.data(), bias.data(), rows, columns, depth, expected.data(), columns) == 0);
  for (const int threads : {2, 3, 7}) {
    kvasir::set_threads(threads);
    kvasir::matrix_product(a.data(), b.data(), bias.data(), rows, columns, depth, out.data());
    CHECK(out == expected);
  }
  kvasir::set_threads(before);
  for (const int some : {1, 2, 5, 11, 14, 64, 65}) {
    std::vector<float> part(some * columns);
    kvasir::matrix_product(a.data() + 7 * depth, b.data(), bias.data(), some, columns, depth, part.data());
    CHECK(std::equal(part.begin(), part.end(), expected.begin() + 7 * columns));
  }
  for (const int some : {1, 7, 100}) {
    std::vector<float> part(rows * some);
    kvasir::matrix_product(a.data(), b.data() + 5 * depth, bias.data() + 5, rows, some, depth, part.data());
    int different = 0;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < some; ++c) different += part[r * some + c] != expected[r * columns + 5 + c];
    }
    CHECK(different == 0);
  }
}

// e^x is off by 2e-7, and sum, quotient and products add four roundings: 2e-7 + 4 * 2^-24 < 5e-7.
TEST_CASE("matrix: silu_product") {
  const int rows = 70, columns = 1009;
  auto gates = support::float_rows(4, rows, 2 * columns, 10.0);
  gates[0] = 80.0f;
  gates[1] = -80.0f;
  gates[2] = 0.0f;
  for (const kvasir::Backend* backend : support::available_backends()) {
    for (const int count : {1, 3, 4, 8, 15, 16, 17, 31, 1009}) {
      support::Guarded<float> out(count);
      backend->matrix->silu_product(gates.data(), gates.data() + columns, count, out.data());
      int wrong = 0;
      for (int i = 0; i < count; ++i) {
        const double x = gates[i];
        const double expected = x / (1.0 + std::exp(-x)) * gates[columns + i];
        wrong += !(std::fabs(out[i] - expected) <= 5e-7 * std::fabs(expected));
      }
      CHECK_MESSAGE(wrong == 0, backend->name, ", ", count, " elements");
      CHECK(out.guards_intact());
    }
  }
  std::vector<float> out(rows * columns), row(columns);
  kvasir::silu_product(gates.data(), rows, columns, out.data());
  for (int r = 0; r < rows; ++r) {
    kvasir::silu_product(gates.data() + 2 * r * columns, 1, columns, row.data());
    REQUIRE(std::equal(row.begin(), row.end(), out.begin() + r * columns));
  }
}

TEST_CASE("matrix: NaN passes through, bad arguments do not") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> a(2 * 20, 1.0f), b(3 * 20, 1.0f), out(6);
  a[25] = nan;
  kvasir::matrix_product(a.data(), b.data(), nullptr, 2, 3, 20, out.data());
  CHECK(out[2] == 20.0f);
  CHECK(std::isnan(out[3]));
  const float* none = nullptr;
  const int64_t huge = int64_t{1} << 40;
  CHECK_THROWS_AS(kvasir::matrix_product(a.data(), b.data(), none, 0, 3, 20, out.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::matrix_product(a.data(), b.data(), none, 2, -1, 20, out.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::matrix_product(a.data(), b.data(), none, 2, 3, 0, out.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::matrix_product(none, b.data(), none, 2, 3, 20, out.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::matrix_product(a.data(), b.data(), none, 2, 3, 20, nullptr), kvasir::Error);
  CHECK_THROWS_AS(kvasir::matrix_product(a.data(), b.data(), none, huge, huge, 20, out.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::silu_product(a.data(), 0, 3, out.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::silu_product(none, 1, 3, out.data()), kvasir::Error);
}
