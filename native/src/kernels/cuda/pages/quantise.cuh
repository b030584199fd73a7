// Codes of elements, exactly as codecs/uniform/formula.h and codecs/progressive/formula.h give them, in fewer steps.
//
// Rounding is done by adding kRoundingBias: the nearest integer, or the one below where the addition rounds towards
// zero, then stands in the low bits of the sum.
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
  float inverse;  // steps / range, 0 for a constant group
  float range;
};

KVASIR_HOST_DEVICE static inline Quantiser quantiser_of(const uniform::Parameters& stored,
                                                        const uniform::Codes& codes) {
  const float range = half_to_float(stored.range);
  return {half_to_float(stored.lo), uniform::inverse_step(range, codes), range};
}

// Instead of Quantiser::inverse for codes of 16 bits.
KVASIR_HOST_DEVICE static inline double inverse16_of(float range, Grid grid) {
  return range > 0.0f ? progressive::steps_of(grid) / range : 0.0;
}

// The whole part of a number that is not negative and below 2^22.
KVASIR_HOST_DEVICE static inline uint32_t truncated_bits(float quotient) {
#ifdef __CUDA_ARCH__
  return float_bits(__fadd_rz(quotient, kRoundingBias));
#else
  return float_bits(truncf(quotient) + kRoundingBias);
#endif
}

// The low bits of the result are the code, others are not 0; so it is with all functions below.
//
// With levels from end to end no element needs to be cut off at the last: x - lo is at most range, and the roundings
// that follow add less than last * 2^-22 to the last code, to which they then round.
KVASIR_HOST_DEVICE static inline uint32_t uniform_code(float x, float lo, float inverse, bool cells, int last) {
  const float quotient = (x - lo) * inverse;
  if (cells) return truncated_bits(fminf(quotient, static_cast<float>(last)));
  return float_bits(quotient + kRoundingBias);
}

// The same where parameters of a byte may not cover a group: what is beyond the last code has it.
KVASIR_HOST_DEVICE static inline uint32_t clipped_uniform_code(float x, float lo, float inverse, bool cells, int last) {
  const float quotient = fminf((x - lo) * inverse, static_cast<float>(last));
  return cells ? truncated_bits(quotient) : float_bits(quotient + kRoundingBias);
}

// Where the quotient is so near to where codes part that its rounding must be decided exactly.
KVASIR_HOST_DEVICE static KVASIR_OUT_OF_LINE uint32_t decided_code(float x, float lo, float range, int bits,
                                                                   bool cells) {
  const Grid grid = cells ? Grid::kCells : Grid::kEnds;
  const progressive::Shift shift = cells ? progressive::Shift::kDirect : progressive::Shift::kEquivalent;
  return progressive::narrow_to(static_cast<uint32_t>(progressive::code_of(x, lo, range, grid)), bits, shift);
}

// Of codes from end to end, the upper bits: what the shifts that are there to be compared with leave.
[[maybe_unused]] KVASIR_HOST_DEVICE static KVASIR_OUT_OF_LINE uint32_t cut_code(float x, float lo, float range,
                                                                                int bits) {
  return static_cast<uint32_t>(progressive::code_of(x, lo, range, Grid::kEnds)) >> (16 - bits);
}

// kBits 2, 4 or 8. The code at that width is the true quotient (x - lo) * steps / range, rounded. Float32 gets within
// 3 * 2^-24 of it in relative terms; quotients nearer than that to a half, or to the border of two cells, are decided
// in double. Elements below the first border and above the last are not near any.
template <int kBits>
KVASIR_HOST_DEVICE static inline uint32_t progressive_code(float x, float lo, float inverse, const float* range,
                                                           bool cells) {
  constexpr int kLast = (1 << kBits) - 1;
  constexpr float kDoubt = (kLast + 1) * (1.0f / (1 << 22));
  const float quotient = (x - lo) * inverse;
  const float sum = quotient + kRoundingBias;
  const float nearest = sum - kRoundingBias;
  const float rest = fabsf(quotient - nearest);
  if (cells) {
    const bool doubtful = rest < kDoubt && nearest > 0.0f && nearest <= kLast;
    return doubtful ? decided_code(x, lo, *range, kBits, true) : truncated_bits(fminf(quotient, kLast));
  }
  if (rest > 0.5f - kDoubt) return decided_code(x, lo, *range, kBits, false);
  return float_bits(sum);
}

// 16 bits, the same in double, where the product with a reciprocal is off by less than 2^-34.
KVASIR_HOST_DEVICE static inline uint32_t progressive_code16(float x, float lo, double inverse, const float* range,
                                                             bool cells) {
  constexpr double kLast = 65535.0, kDoubt = 1.0 / (1 << 30);
  const double quotient = (static_cast<double>(x) - static_cast<double>(lo)) * inverse;
  const double sum = quotient + kRoundingBiasDouble;
  const double nearest = sum - kRoundingBiasDouble;
  const double rest = fabs(quotient - nearest);
  if (cells) {
    const bool doubtful = rest < kDoubt && nearest > 0.0 && nearest <= kLast;
    return doubtful ? decided_code(x, lo, *range, 16, true) : static_cast<uint32_t>(fmin(quotient, kLast));
  }
  if (rest > 0.5 - kDoubt) return decided_code(x, lo, *range, 16, false);
  uint64_t bits;
  memcpy(&bits, &sum, sizeof bits);
  return static_cast<uint32_t>(bits);
}

}  // namespace kvasir::cuda
