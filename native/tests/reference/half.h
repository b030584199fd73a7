// float16 and bfloat16 by their definition, in double arithmetic: no bit tricks, nothing shared with the library.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace reference {

// The value of a float16: sign, 5 exponent bits (bias 15), 10 fraction bits.
inline double half_value(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  if (exponent == 31) return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

// Distance between neighbouring float16 values at magnitude x (x finite, below 65536).
inline double half_spacing(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| in [2^(exponent-1), 2^exponent)
  return std::ldexp(1.0, std::max(exponent - 11, -24));
}

// The float16 whose value is exactly x; x must be one, or at least 65536 in magnitude, which gives infinity.
inline uint16_t half_bits_of_exact(double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(x);
  if (magnitude >= 65536.0) return sign | 0x7c00;
  const double spacing = half_spacing(magnitude);
  const int steps = static_cast<int>(magnitude / spacing);  // 0..2047, below 1024 only for subnormals
  if (steps < 1024) return sign | static_cast<uint16_t>(steps);
  const int exponent = static_cast<int>(std::log2(spacing)) + 25;
  return sign | static_cast<uint16_t>(exponent << 10) | static_cast<uint16_t>(steps - 1024);
}

// Nearest float16, ties to even; 65520 and above are infinity. Any NaN gives 0x7e00 with the sign kept.
inline uint16_t half_nearest(double x) {
  if (std::isnan(x)) return (std::signbit(x) ? 0x8000 : 0) | 0x7e00;
  if (std::fabs(x) >= 65536.0) return half_bits_of_exact(x);
  const double spacing = half_spacing(x);
  return half_bits_of_exact(std::nearbyint(x / spacing) * spacing);  // nearbyint rounds ties to even
}

// Smallest float16 that is at least x, x >= 0.
inline uint16_t half_up(double x) {
  const double spacing = half_spacing(x);
  return half_bits_of_exact(std::ceil(x / spacing) * spacing);
}

// Largest float16 that is at most x, |x| <= 65504.
inline uint16_t half_down(double x) {
  const double spacing = half_spacing(x);
  return half_bits_of_exact(std::floor(x / spacing) * spacing);
}

inline double bfloat_value(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

}  // namespace reference
