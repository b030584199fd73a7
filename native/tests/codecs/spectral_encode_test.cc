// Sealing spectral pages in a basis: the whole numbers that rows and the inverse of the basis become, and the codes
// that follow from them, by the definition.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "codecs/basis.h"
#include "codecs/spectral/formula.h"
#include "reference/spectral_page.h"
#include "reference/spectral_rows.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/formats.h"
#include "support/spectral_cases.h"

namespace {

using kvasir::Basis;
using kvasir::kPageTokens;
using kvasir::Side;
using support::SpectralCase;

constexpr int kHeads = 2;
constexpr double kPi = 3.141592653589793;
constexpr int kDims[] = {32, 48, 64, 80, 96, 112, 128, 192, 208, 256};

enum class Kind {
  kPlain,   // near the unit matrix
  kUneven,  // the same, with lengths that differ a thousandfold
  kDense,   // cosines: columns of the inverse are bounded by their norm, and not by their largest number
};
constexpr Kind kKinds[] = {Kind::kPlain, Kind::kUneven, Kind::kDense};

const char* name_of(Kind kind) {
  return kind == Kind::kPlain ? ", plain basis" : kind == Kind::kUneven ? ", uneven basis" : ", dense basis";
}

std::shared_ptr<const Basis> make_basis(int d, Kind kind) {
  auto vectors = support::basis_vectors(7, kHeads, d);
  for (int vector = 0; vector < kHeads * d; ++vector) {
    const int c = vector % d;
    for (int i = 0; i < d; ++i) {
      float& x = vectors[static_cast<size_t>(vector) * d + i];
      if (kind == Kind::kDense) x = static_cast<float>((1.0 + 0.1 * (c % 5)) * std::cos(kPi * c * (i + 0.5) / d));
      if (kind == Kind::kUneven) x = std::ldexp(x, c % 11 - 5);
    }
  }
  return Basis::make(vectors.data(), kHeads, d);
}

int number_at(const Basis& basis, int head, int i, int c) {
  const int d = basis.head_dim();
  return basis.inverse(head)[(static_cast<size_t>(i / 2) * d + c) * 2 + i % 2];
}

// E of the format: a unit is 2^-(R + E).
int exponent_of(const Basis& basis, int head, int c) {
  return -std::ilogb(basis.units(head)[c]) - reference::spectral_row_bits(basis.head_dim());
}

// Whether a column of the inverse fits the format's bounds with this exponent. `slack`: what is added to a number's
// magnitude where another way to find the inverse may round it otherwise.
bool fits(const std::vector<double>& inverse, int d, int c, int exponent, int slack) {
  double squares = 0.0;
  for (int i = 0; i < d; ++i) {
    const double number = std::fabs(std::nearbyint(std::ldexp(inverse[static_cast<size_t>(i) * d + c], exponent)));
    if (number + slack > reference::kSpectralMost) return false;
    squares += (number + slack) * (number + slack);
  }
  return std::sqrt(squares) <= static_cast<double>(reference::spectral_most_norm(d));
}

std::vector<float> at_half(std::vector<float> row) {
  for (float& x : row) x = support::round_to_half(x);
  return row;
}

// What is hardest: rows as large as float16 goes, in one channel and in all, nothing, the least there is, and rows
// along columns of the inverse, whose sums are the largest that there are, with norms that are rounded down furthest,
// too.
std::vector<float> hard_row(const Basis& basis, int head, int t, support::Random& random) {
  const int d = basis.head_dim();
  constexpr float kMost = 65504.0f, kLeast = 0x1p-24f;
  std::vector<float> row(static_cast<size_t>(d), 0.0f);
  const int c = random.below(d);
  const auto along = [&](int i) { return static_cast<float>(number_at(basis, head, i, c)); };
  switch (t % 8) {
    case 0:
      row[static_cast<size_t>(c)] = t % 16 == 0 ? kMost : -kMost;
      break;
    case 1:
      for (int i = 0; i < d; ++i) row[static_cast<size_t>(i)] = along(i) < 0.0f ? -kMost : kMost;
      break;
    case 2:
      break;
    case 3:
      for (int i = 0; i < d; ++i) row[static_cast<size_t>(i)] = along(i) < 0.0f ? -kLeast : kLeast;
      break;
    case 4:
      row[static_cast<size_t>(c)] = kLeast;
      break;
    case 5:
      for (int i = 0; i < d; ++i) row[static_cast<size_t>(i)] = along(i);
      break;
    case 6: {
      double squares = 0.0;
      for (int i = 0; i < d; ++i) squares += along(i) * along(i);
      const double root = std::exp2(random.below(64) / 8.0 + 0.0624);
      for (int i = 0; i < d; ++i) {
        row[static_cast<size_t>(i)] = static_cast<float>(along(i) * root / std::sqrt(squares / d));
      }
      break;
    }
    default:
      for (float& x : row) x = static_cast<float>(random.normal());
  }
  return at_half(std::move(row));
}

// [token][head][channel]
std::vector<float> make_rows(const Basis& basis, bool hard, uint64_t seed) {
  support::Random random(seed);
  std::vector<float> rows;
  for (int t = 0; t < kPageTokens; ++t) {
    for (int h = 0; h < kHeads; ++h) {
      std::vector<float> row(static_cast<size_t>(basis.head_dim()));
      const double large = t % 17 == 3 ? 8.0 : 1.0;
      for (float& x : row) x = static_cast<float>(large * random.normal());
      row = hard ? hard_row(basis, h, t, random) : at_half(std::move(row));
      rows.insert(rows.end(), row.begin(), row.end());
    }
  }
  return rows;
}

const float* row_of(const std::vector<float>& rows, int d, int t, int h) {
  return rows.data() + (static_cast<size_t>(t) * kHeads + h) * d;
}

int norm_code_of(const reference::SpectralHead& head, int t) {
  return static_cast<int>(std::lround(8.0 * std::log2(head.norm[static_cast<size_t>(t)]))) + 128;
}

}  // namespace

TEST_CASE("spectral: the inverse of a basis becomes the largest whole numbers that sums have room for") {
  for (const int d : kDims) {
    for (const Kind kind : kKinds) {
      const auto basis = make_basis(d, kind);
      for (int h = 0; h < kHeads; ++h) {
        const auto inverse = reference::spectral_inverse(basis->vectors(h), d);
        int wrong = 0;
        for (int c = 0; c < d; ++c) {
          const int exponent = exponent_of(*basis, h, c);
          REQUIRE(basis->units(h)[c] == std::ldexp(1.0f, -exponent - reference::spectral_row_bits(d)));
          int64_t squares = 0;
          for (int i = 0; i < d; ++i) {
            const int number = number_at(*basis, h, i, c);
            wrong += std::abs(number) > reference::kSpectralMost;
            squares += static_cast<int64_t>(number) * number;
            // To the nearest, but for what two ways to find an inverse in double differ by.
            wrong += std::fabs(number - std::ldexp(inverse[static_cast<size_t>(i) * d + c], exponent)) > 0.5 + 1e-6;
          }
          const int64_t most = reference::spectral_most_norm(d);
          wrong += squares > most * most;
          wrong += fits(inverse, d, c, exponent + 1, 1);
        }
        CHECK_MESSAGE(wrong == 0, "d=", d, name_of(kind), ": ", wrong);
      }
    }
  }
}

TEST_CASE("spectral: numbers of rows are rounded to the nearest even, within bounds, whatever the row") {
  using kvasir::spectral::row_number;
  for (const int d : kDims) CHECK(kvasir::spectral::row_bits(d) == reference::spectral_row_bits(d));
  CHECK(kvasir::spectral::row_bits(128) == 11);
  CHECK(kvasir::spectral::row_bits(256) == 10);
  constexpr int kMost = reference::kSpectralMost;
  for (int quarters = -4 * (kMost + 100); quarters <= 4 * (kMost + 100); ++quarters) {
    const double number = std::nearbyint(quarters / 4.0);
    const double expected = std::max<double>(-kMost, std::min<double>(kMost, number));
    REQUIRE(row_number(static_cast<float>(quarters) / 4.0f / 2048.0f, 2048.0f) == expected);
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float large : {33000.0f, 65536.0f, 4194304.0f, 8388608.0f, 12582912.0f, 1e9f, 3e38f, kInfinity}) {
    CHECK(row_number(large, 1.0f) == kMost);
    CHECK(row_number(-large, 1.0f) == -kMost);
  }
  CHECK(row_number(kNan, 2048.0f) == -kMost);
  CHECK(row_number(-kNan, 2048.0f) == -kMost);
  CHECK(row_number(1e-45f, 2048.0f) == 0);
}

namespace {

// [token][coefficient] of a head, by whole numbers; counts what leaves 16 bits, and finds the largest sum.
std::vector<double> whole_coefficients(const Basis& basis, const std::vector<float>& rows, int h,
                                       const reference::SpectralHead& head, int& beyond, int64_t& largest) {
  const int d = basis.head_dim();
  std::vector<double> z;
  for (int t = 0; t < kPageTokens; ++t) {
    const auto numbers =
        reference::spectral_numbers(reference::spectral_unit_row(row_of(rows, d, t, h), d, norm_code_of(head, t)));
    std::vector<int64_t> sums(static_cast<size_t>(d), 0);
    for (int i = 0; i < d; ++i) {
      beyond += std::abs(numbers[i]) > reference::kSpectralMost;
      for (int c = 0; c < d; ++c) sums[c] += numbers[i] * number_at(basis, h, i, c);
    }
    for (int c = 0; c < d; ++c) {
      largest = std::max(largest, std::abs(sums[c]));
      z.push_back(static_cast<float>(sums[c]) * basis.units(h)[c]);
    }
  }
  return z;
}

}  // namespace

// The numbers of a row and the sums are exact, so codes are those of the reference but for what stands at the middle
// between two of them: float32 may round a distance in cells, at most 2^8 of them, to the other side.
TEST_CASE("spectral: codes are those of whole sums that fit 32 bits, of hard rows, too") {
  for (const int d : kDims) {
    for (const Kind kind : kKinds) {
      const auto basis = make_basis(d, kind);
      const auto rows = make_rows(*basis, kind != Kind::kPlain, 12);
      int beyond = 0;
      int64_t largest = 0;
      std::vector<std::vector<double>> z(kHeads);
      for (const Side side : {Side::kKeys, Side::kValues}) {
        for (const double bits : {2.0, 8.0}) {
          const SpectralCase of = support::spectral_case(side, d, bits, kHeads, basis);
          const auto page = support::spectral_page(support::scalar_backend(), of, rows);
          for (const kvasir::Backend* backend : support::available_backends()) {
            CHECK_MESSAGE(support::spectral_page(*backend, of, rows) == page, of.text, ", ", backend->name);
          }
          for (int h = 0; h < kHeads; ++h) {
            const auto head = reference::read_spectral(page.data() + h * of.head_bytes(), d, side == Side::kKeys);
            int wrong = 0;
            if (z[h].empty()) z[h] = whole_coefficients(*basis, rows, h, head, beyond, largest);
            for (size_t at = 0; at < z[h].size(); ++at) {
              const size_t c = at % static_cast<size_t>(d);
              const double last = (1 << head.width[c]) - 1;
              const double cells = std::max(0.0, std::min(last, (z[h][at] - head.low[c]) / head.step[c]));
              wrong += std::fabs(cells - head.code[at]) > 0.5 + 1e-3;
            }
            CHECK_MESSAGE(wrong == 0, of.text, name_of(kind), ": ", wrong);
          }
        }
      }
      CHECK_MESSAGE(beyond == 0, "d=", d, name_of(kind), ": ", beyond);
      CHECK_MESSAGE(largest < int64_t{1} << 31, "d=", d, name_of(kind), ": ", largest);
      // Columns have at least half of the norm that they may have, rows along them at least 1 / 1.1 of theirs.
      if (kind == Kind::kDense) CHECK_MESSAGE(largest > 0.4 * 0x1p31, "d=", d, ": ", largest);
    }
  }
}

// Of a coefficient, the sum over i of x'[i] T[i][c], rounding x' to numbers takes at most 2^-(R + 1) of each x', and so
// that times the sum of |T[i][c]|; rounding T at most 2^-(E + 1) of each, times the numbers over 2^R, which are within
// 2^-(R + 1) of x'.
TEST_CASE("spectral: coefficients in a basis are off by half a step, and by what whole numbers round away") {
  for (const int d : kDims) {
    const auto basis = make_basis(d, Kind::kPlain);
    const auto rows = make_rows(*basis, false, 13);
    const double row_unit = std::exp2(-reference::spectral_row_bits(d));
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const SpectralCase of = support::spectral_case(side, d, 8.0, kHeads, basis);
      const auto page = support::spectral_page(support::scalar_backend(), of, rows);
      for (int h = 0; h < kHeads; ++h) {
        const auto head = reference::read_spectral(page.data() + h * of.head_bytes(), d, side == Side::kKeys);
        const auto inverse = reference::spectral_inverse(basis->vectors(h), d);
        std::vector<double> inverse_sums(static_cast<size_t>(d), 0.0);
        for (size_t at = 0; at < inverse.size(); ++at) inverse_sums[at % inverse_sums.size()] += std::fabs(inverse[at]);
        int wrong = 0;
        for (int t = 0; t < kPageTokens; ++t) {
          std::vector<double> coefficients(static_cast<size_t>(d), 0.0);
          double row_sum = 0.0;
          for (int i = 0; i < d; ++i) {
            const double x = row_of(rows, d, t, h)[i] / head.norm[t];
            row_sum += std::fabs(x) + row_unit / 2;
            for (int c = 0; c < d; ++c) coefficients[c] += x * inverse[static_cast<size_t>(i) * d + c];
          }
          for (int c = 0; c < d; ++c) {
            const double rounding =
                row_unit / 2 * inverse_sums[c] + std::exp2(-exponent_of(*basis, h, c) - 1) * row_sum;
            const int code = head.code[static_cast<size_t>(t) * d + c];
            // At the ends a grid may be short of the range by what its step was rounded by, a sixteenth of an octave.
            const double ends = code == 0 || code == 255 ? 0.5 + 0.05 * 256 : 0.0;
            const double error = std::fabs(coefficients[c] - head.coefficients[static_cast<size_t>(t) * d + c]);
            // Norms and x' have roundings of their own, of 2^-24 each.
            wrong += error > head.step[c] * (0.5001 + ends) + rounding + 0x1p-22 * inverse_sums[c] * std::sqrt(d);
          }
        }
        CHECK_MESSAGE(wrong == 0, of.text, ": ", wrong);
      }
    }
  }
}

// Caches refuse such rows; kernels make pages of them all the same, and all the same pages.
TEST_CASE("spectral: rows that are not finite become the same bytes in every backend") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const int d : {64, 80, 256}) {
    const auto basis = make_basis(d, Kind::kPlain);
    auto rows = make_rows(*basis, false, 14);
    support::Random random(15);
    for (const float odd : {kInfinity, -kInfinity, kNan, -kNan}) {
      for (int i = 0; i < 40; ++i) rows[static_cast<size_t>(random.below(static_cast<int>(rows.size())))] = odd;
    }
    for (int i = 0; i < kHeads * d; ++i) rows[static_cast<size_t>(i)] = i % 2 == 0 ? kInfinity : -kInfinity;
    const SpectralCase of = support::spectral_case(Side::kKeys, d, 2.0, kHeads, basis);
    const auto page = support::spectral_page(support::scalar_backend(), of, rows);
    CHECK(kvasir::codec_at(kvasir::codec_index("spectral")).valid(of.format, {}, page.data(), page.size()));
    for (const kvasir::Backend* backend : support::available_backends()) {
      CHECK_MESSAGE(support::spectral_page(*backend, of, rows) == page, of.text, ", ", backend->name);
    }
  }
}
