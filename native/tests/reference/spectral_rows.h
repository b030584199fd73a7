// Coefficients of rows in a basis, from docs/format.md alone: in double, and in its whole numbers.
#pragma once

#include <cstdint>
#include <vector>

namespace reference {

// [channel][coefficient], of vectors one after the other.
std::vector<double> spectral_inverse(const float* vectors, int d);

// Bits behind the point of a row's numbers, the largest of any number, and the largest norm of a column of the inverse.
int spectral_row_bits(int d);
constexpr int kSpectralMost = 32639;
int64_t spectral_most_norm(int d);

// A row over its norm, of this code, in float32, and as whole numbers.
std::vector<float> spectral_unit_row(const float* row, int d, int norm_code);
std::vector<int64_t> spectral_numbers(const std::vector<float>& unit_row);

}  // namespace reference
