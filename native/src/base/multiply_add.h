// a * b + c in float32, rounded once, on systems whose own function does not keep that promise, too.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace kvasir {

// The sum in float64, where the product is exact, rounded to the neighbour with an odd last bit unless it is exact,
// too: that digit, far behind those of float32, tells the second rounding on which side of the middle between two
// floats the truth lies.
inline float multiply_add_by_doubles(float a, float b, float c) {
  const double product = static_cast<double>(a) * b;
  double sum = product + c;
  if (!std::isfinite(sum)) return static_cast<float>(sum);
  const double part = sum - product;
  const double lost = (product - (sum - part)) + (c - part);  // exactly
  if (lost != 0) {
    uint64_t bits;
    std::memcpy(&bits, &sum, sizeof bits);
    if (bits % 2 == 0) bits += (lost > 0) == (sum > 0) ? 1 : -1;
    std::memcpy(&sum, &bits, sizeof bits);
  }
  return static_cast<float>(sum);
}

inline float multiply_add(float a, float b, float c) {
#if defined(_WIN32)  // which rounds twice (mingw-w64 computes in 80 bits)
  return multiply_add_by_doubles(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

}  // namespace kvasir
