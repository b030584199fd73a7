#include "codecs/basis.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/half.h"
#include "base/sha256.h"
#include "codecs/row_numbers.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

// Inverse entries beyond this would make coefficients of what float16 rounding leaves.
constexpr double kMostInverse = 1e4;

[[noreturn]] void refuse(int kv_head, const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "basis of kv head " + std::to_string(kv_head) + " " + text);
}

// Gauss and Jordan, with the largest pivots. False where the matrix has none.
bool invert(std::vector<double>& matrix, int n, std::vector<double>& inverse) {
  const auto at = [n](std::vector<double>& m, int row, int column) -> double& {
    return m[static_cast<size_t>(row) * n + column];
  };
  inverse.assign(matrix.size(), 0.0);
  for (int i = 0; i < n; ++i) at(inverse, i, i) = 1.0;
  for (int column = 0; column < n; ++column) {
    int pivot = column;
    for (int row = column + 1; row < n; ++row) {
      if (std::fabs(at(matrix, row, column)) > std::fabs(at(matrix, pivot, column))) pivot = row;
    }
    const double value = at(matrix, pivot, column);
    if (value == 0.0) return false;
    for (int i = 0; i < n; ++i) {
      std::swap(at(matrix, pivot, i), at(matrix, column, i));
      std::swap(at(inverse, pivot, i), at(inverse, column, i));
    }
    for (int i = 0; i < n; ++i) {
      at(matrix, column, i) /= value;
      at(inverse, column, i) /= value;
    }
    for (int row = 0; row < n; ++row) {
      const double factor = at(matrix, row, column);
      if (row == column || factor == 0.0) continue;
      for (int i = 0; i < n; ++i) {
        at(matrix, row, i) -= factor * at(matrix, column, i);
        at(inverse, row, i) -= factor * at(inverse, column, i);
      }
    }
  }
  return true;
}

// The largest norm of a column of whole numbers that no row's sum with it leaves 32 bits for. By Cauchy and Schwarz a
// sum, and any part of it, is at most the column's norm times the row's: 1.1 * sqrt(d) before it is scaled and rounded
// (row_numbers.h), and each of its d elements is then off by a half at most.
int64_t most_norm(int head_dim) {
  const double row = (1.1 * row_scale(head_dim) + 0.5) * std::sqrt(static_cast<double>(head_dim));
  return static_cast<int64_t>(std::floor(static_cast<double>(INT32_MAX) / row));
}

// column * 2^exponent to the nearest even; false where one is beyond kMostNumber, or their norm beyond `most`.
bool to_whole(const std::vector<double>& column, int exponent, int64_t most, std::vector<int16_t>& numbers) {
  int64_t squares = 0;
  for (size_t i = 0; i < column.size(); ++i) {
    const double number = std::nearbyint(std::ldexp(column[i], exponent));
    if (std::fabs(number) > kMostNumber) return false;
    numbers[i] = static_cast<int16_t>(number);
    squares += static_cast<int64_t>(numbers[i]) * numbers[i];
  }
  return squares <= most * most;
}

}  // namespace

// Each column by the largest power of two that its numbers fit with. Exponents are tame: vectors are float16, so their
// products with a column, one of which is 1, keep it above 2^-25, and kMostInverse keeps it below 2^38.
void Basis::add_inverse(const std::vector<double>& inverse) {
  const auto d = static_cast<size_t>(head_dim_);
  const int64_t most = most_norm(head_dim_);
  const size_t head = inverse_.size();
  inverse_.resize(head + size());
  std::vector<double> column(d);
  std::vector<int16_t> numbers(d);
  for (size_t c = 0; c < d; ++c) {
    double peak = 0.0;
    for (size_t i = 0; i < d; ++i) {
      column[i] = inverse[i * d + c];
      peak = std::max(peak, std::fabs(column[i]));
    }
    int exponent = 14 - std::ilogb(peak);  // with one more the peak is beyond 2^15
    while (!to_whole(column, exponent, most, numbers)) --exponent;
    for (size_t i = 0; i < d; ++i) inverse_[head + (i / 2 * d + c) * 2 + i % 2] = numbers[i];
    units_.push_back(static_cast<float>(std::ldexp(1.0, -(row_bits(head_dim_) + exponent))));
  }
}

std::shared_ptr<const Basis> Basis::make(const float* vectors, int kv_heads, int head_dim) {
  std::shared_ptr<Basis> basis(new Basis(kv_heads, head_dim));
  for (int head = 0; head < kv_heads; ++head) {
    std::vector<double> matrix(basis->size()), inverse;
    double largest = 0.0;
    for (size_t i = 0; i < basis->size(); ++i) {
      const float rounded = half_to_float(float_to_half(vectors[head * basis->size() + i]));
      if (!std::isfinite(rounded)) refuse(head, "has an element that is not finite, or beyond float16");
      basis->vectors_.push_back(rounded);
      matrix[i] = rounded;
      largest = std::max(largest, std::fabs(matrix[i]));
    }
    if (largest == 0.0 || !invert(matrix, head_dim, inverse)) refuse(head, "has vectors that do not span the space");
    for (const double x : inverse) {
      if (!(std::fabs(x) * largest <= kMostInverse)) refuse(head, "has vectors that hardly span the space");
    }
    basis->add_inverse(inverse);
  }
  return basis;
}

void Basis::content(uint8_t (&digest)[32]) const {
  Sha256 sum;
  const Digest made =
      sum.add_number(kv_heads_).add_number(head_dim_).add(vectors_.data(), vectors_.size() * sizeof(float)).finish();
  std::copy(made.begin(), made.end(), digest);
}

}  // namespace kvasir
