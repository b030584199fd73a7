#include "reference/spectral_rows.h"

#include <cmath>
#include <utility>

namespace reference {

// Elimination with the largest pivots, then backwards, for all unit vectors at once.
std::vector<double> spectral_inverse(const float* vectors, int d) {
  std::vector<std::vector<double>> rows(d, std::vector<double>(2 * static_cast<size_t>(d), 0.0));
  for (int r = 0; r < d; ++r) {
    for (int c = 0; c < d; ++c) rows[r][c] = vectors[static_cast<size_t>(r) * d + c];
    rows[r][d + r] = 1.0;
  }
  const auto subtract = [&](int from, int what, int first) {
    const double factor = rows[from][what] / rows[what][what];
    for (int c = first; c < 2 * d; ++c) rows[from][c] -= factor * rows[what][c];
  };
  for (int k = 0; k < d; ++k) {
    int pivot = k;
    for (int r = k; r < d; ++r) pivot = std::fabs(rows[r][k]) > std::fabs(rows[pivot][k]) ? r : pivot;
    std::swap(rows[k], rows[pivot]);
    for (int r = k + 1; r < d; ++r) subtract(r, k, k);
  }
  for (int k = d - 1; k >= 0; --k) {
    for (int r = 0; r < k; ++r) subtract(r, k, k);
  }
  std::vector<double> inverse;
  for (int r = 0; r < d; ++r) {
    for (int c = 0; c < d; ++c) inverse.push_back(rows[r][d + c] / rows[r][r]);
  }
  return inverse;
}

int spectral_row_bits(int d) {
  int bits = 0;
  while (1.1 * std::sqrt(d) * std::exp2(bits + 1) <= kSpectralMost) ++bits;
  return bits;
}

int64_t spectral_most_norm(int d) {
  const double row = 1.1 * std::sqrt(d) * std::exp2(spectral_row_bits(d));
  return static_cast<int64_t>((std::exp2(31) - 1) / (row + std::sqrt(d) / 2));
}

std::vector<float> spectral_unit_row(const float* row, int d, int norm_code) {
  const int octave = norm_code / 8 - 16;
  const float norm = static_cast<float>(std::exp2(norm_code % 8 / 8.0)) * static_cast<float>(std::exp2(octave));
  const float inverse = 1.0f / norm;
  std::vector<float> unit;
  for (int c = 0; c < d; ++c) unit.push_back(row[c] * inverse);
  return unit;
}

std::vector<int64_t> spectral_numbers(const std::vector<float>& unit_row) {
  const double scale = std::exp2(spectral_row_bits(static_cast<int>(unit_row.size())));
  std::vector<int64_t> numbers;
  for (const float x : unit_row) numbers.push_back(std::llrint(static_cast<double>(x) * scale));
  return numbers;
}

}  // namespace reference
