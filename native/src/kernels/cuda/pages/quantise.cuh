// Codes of elements, exactly as codecs/uniform/formula.h and codecs/progressive/formula.h give them, in fewer steps.
//
// Rounding is done by adding kRoundingBias: the nearest integer then stands in the low bits of the sum.
// What includes this must be compiled without contraction of a * b + c (CMakeLists.txt sees to it).
#pragma once

#include <cmath>
#include <cstring>

#include "codecs/progressive/formula.h"
#include "codecs/uniform/formula.h"
#include "kernels/cuda/layout/fragments.h"
#include "kernels/cuda/primitives/rounding.h"

#ifdef __CUDACC__
#define KVASIR_OUT_OF_LINE __noinline__
#else
#define KVASIR_OUT_OF_LINE
#endif

namespace kvasir::cuda {

// What the elements of a group are quantised by.
struct Quantiser {
  float lo;
  float inverse;  // levels / range, 0 for a constant group
  float range;
};

KVASIR_HOST_DEVICE static inline Quantiser quantiser_of(const uniform::Parameters& stored, int bits) {
  const float range = half_to_float(stored.range);
  return {half_to_float(stored.lo), uniform::inverse_step(range, uniform::levels_of(bits)), range};
}

// Instead of Quantiser::inverse for codes of 16 bits.
KVASIR_HOST_DEVICE static inline double inverse16_of(float range) {
  return range > 0.0f ? progressive::kLevels / range : 0.0;
}

// The low bits of the result are the code, others are not 0; so it is with all functions below.
//
// No element needs to be cut off at `levels`: x - lo is at most range, and the roundings that follow add less than
// levels * 2^-22 to levels, which then rounds to levels.
KVASIR_HOST_DEVICE static inline uint32_t uniform_code(float x, float lo, float inverse) {
  return float_bits((x - lo) * inverse + kRoundingBias);
}

// Where the quotient is so near to a half that its rounding must be decided exactly.
KVASIR_HOST_DEVICE static KVASIR_OUT_OF_LINE uint32_t decided_code(float x, float lo, float range, int bits) {
  return progressive::narrow_to(static_cast<uint32_t>(progressive::code_of(x, lo, range)), bits);
}

// kBits 2, 4 or 8. The code at that width is the true quotient (x - lo) * levels / range, rounded. Float32 gets within
// 3 * 2^-24 of it in relative terms; quotients nearer than that to a half are decided in double.
template <int kBits>
KVASIR_HOST_DEVICE static inline uint32_t progressive_code(float x, float lo, float inverse, const float* range) {
  constexpr float kSure = 0.5f - ((1 << kBits) - 1) * (1.0f / (1 << 22));
  const float quotient = (x - lo) * inverse;
  const float sum = quotient + kRoundingBias;
  const float rest = quotient - (sum - kRoundingBias);
  if (fabsf(rest) > kSure) return decided_code(x, lo, *range, kBits);
  return float_bits(sum);
}

// 16 bits, the same in double, where the product with a reciprocal is off by less than 2^-34.
KVASIR_HOST_DEVICE static inline uint32_t progressive_code16(float x, float lo, double inverse, const float* range) {
  constexpr double kSure = 0.5 - 1.0 / (1 << 30);
  const double quotient = (static_cast<double>(x) - static_cast<double>(lo)) * inverse;
  const double sum = quotient + kRoundingBiasDouble;
  const double rest = quotient - (sum - kRoundingBiasDouble);
  if (fabs(rest) > kSure) return decided_code(x, lo, *range, 16);
  uint64_t bits;
  memcpy(&bits, &sum, sizeof bits);
  return static_cast<uint32_t>(bits);
}

}  // namespace kvasir::cuda
