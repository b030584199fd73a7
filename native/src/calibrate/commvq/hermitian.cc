#include "calibrate/commvq/hermitian.h"

#include <algorithm>
#include <cmath>

namespace kvasir::commvq {
namespace {

using Complex = std::complex<double>;

// Without the checks for infinities that std::complex multiplies with.
inline Complex times(Complex a, Complex b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

void subtract_row(Complex factor, const Complex* from, int count, Complex* to) {
  for (int i = 0; i < count; ++i) to[i] -= times(factor, from[i]);
}

}  // namespace

// H = U^H U by rows of the upper triangle, then one substitution forward and one back.
void solve_hermitian(int count, std::vector<Complex>& matrix, int columns, std::vector<Complex>& rhs) {
  double trace = 0.0;
  for (int k = 0; k < count; ++k) trace += matrix[static_cast<size_t>(k) * count + k].real();
  // A pivot that small is rounding: its unknown has no say.
  const double least = 1e-12 * trace / count;
  std::vector<double> inverse(count);
  for (int k = 0; k < count; ++k) {
    Complex* const row = matrix.data() + static_cast<size_t>(k) * count;
    const double pivot = row[k].real();
    inverse[k] = pivot > least ? 1.0 / std::sqrt(pivot) : 0.0;
    for (int j = k; j < count; ++j) row[j] *= inverse[k];
    for (int i = k + 1; i < count; ++i) {
      subtract_row(std::conj(row[i]), row + i, count - i, matrix.data() + static_cast<size_t>(i) * count + i);
    }
  }
  const auto right = [&](int k) { return rhs.data() + static_cast<size_t>(k) * columns; };
  for (int k = 0; k < count; ++k) {
    for (int c = 0; c < columns; ++c) right(k)[c] *= inverse[k];
    const Complex* const row = matrix.data() + static_cast<size_t>(k) * count;
    for (int i = k + 1; i < count; ++i) subtract_row(std::conj(row[i]), right(k), columns, right(i));
  }
  for (int k = count - 1; k >= 0; --k) {
    const Complex* const row = matrix.data() + static_cast<size_t>(k) * count;
    for (int i = k + 1; i < count; ++i) subtract_row(row[i], right(i), columns, right(k));
    for (int c = 0; c < columns; ++c) right(k)[c] *= inverse[k];
  }
}

}  // namespace kvasir::commvq
