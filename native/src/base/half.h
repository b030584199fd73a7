// IEEE float16 and bfloat16 as bits, converted in software: exact, the same on every compiler.
//
// Kernels that convert many elements use the machine's instructions; these define what those must return.
// Static, so that no copy compiled for a newer instruction set can stand in for the baseline one.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace kvasir {

KVASIR_HOST_DEVICE static inline uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

KVASIR_HOST_DEVICE static inline float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

KVASIR_HOST_DEVICE static inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1Fu;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0) {
    // Subnormals are mantissa * 2^-24: an exact product of two floats.
    const float magnitude = static_cast<float>(mantissa) * bits_float(0x33800000u);
    return bits_float(float_bits(magnitude) | sign);
  }
  if (exponent == 31) return bits_float(sign | 0x7F800000u | (mantissa << 13));
  return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Rounds to nearest, ties to even; overflows to infinity.
KVASIR_HOST_DEVICE static inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and above
  if (magnitude < 0x38800000u) {                                               // below 2^-14: subnormal
    // Adding 0.5 leaves the value, rounded to multiples of 2^-24, in the low mantissa bits.
    const float shifted = bits_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_bits(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// The smallest float16 that is not below `value`, for 0 <= value <= 65504.
KVASIR_HOST_DEVICE static inline uint16_t half_at_least(double value) {
  uint16_t half = float_to_half(static_cast<float>(value));
  if (static_cast<double>(half_to_float(half)) < value) ++half;  // positive halves are ordered like their bits
  return half;
}

// The largest float16 that is not above `value`, for -65504 <= value <= 65504.
KVASIR_HOST_DEVICE static inline uint16_t half_at_most(float value) {
  uint16_t half = float_to_half(value);
  if (half_to_float(half) <= value) return half;
  if (half == 0) return 0x8001u;  // +0 was above a negative value: the next number down is the smallest negative one
  return static_cast<uint16_t>(half & 0x8000u ? half + 1 : half - 1);
}

KVASIR_HOST_DEVICE static inline float bfloat_to_float(uint16_t bfloat) {
  return bits_float(static_cast<uint32_t>(bfloat) << 16);
}

// Rounds to nearest, ties to even; overflows to infinity.
KVASIR_HOST_DEVICE static inline uint16_t float_to_bfloat(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x0040u);  // NaN stays one
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace kvasir
