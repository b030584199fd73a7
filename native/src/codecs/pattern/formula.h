// When is a value vector better off without its pattern?
//
// Quantising to n levels a vector of range R costs a mean squared error that grows with R^2. Flattened and raw errors
// are sums of d independent terms, so their difference is nearly normal, and a one-sided z-test at level alpha accepts
// the pattern when
//
//   1 - rho^2 >= c sqrt(1 + rho^4),   c = 2 z(1 - alpha) / sqrt(5 d),   rho = R_flat / R_raw
//
// which holds exactly for rho up to a root that depends on d and alpha alone. The number of bits cancels.
#pragma once

#include <cmath>

namespace kvasir::pattern {

// The z with P(Z <= z) = probability for a standard normal Z, 0 < probability < 1.
inline double normal_quantile(double probability) {
  double low = -40, high = 40;
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < probability ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

// The largest rho that passes the test; 0 where none does.
inline double accept_ratio(int head_dim, double alpha) {
  const double c = 2 * normal_quantile(1 - alpha) / std::sqrt(5.0 * head_dim);
  const double k = 1 - c * c;
  if (k <= 0) return 0;
  return std::sqrt((1 - std::sqrt(1 - k * k)) / k);
}

}  // namespace kvasir::pattern
