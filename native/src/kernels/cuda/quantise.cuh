// Codes of elements, exactly as codecs/uniform/formula.h and codecs/progressive/formula.h give them.
//
// Rounding is done by adding 1.5 * 2^23: the nearest integer, ties to even, then stands in the low bits of the sum.
#pragma once

#include "codecs/progressive/formula.h"
#include "codecs/uniform/formula.h"
#include "kernels/cuda/layout.h"

namespace kvasir::cuda {

constexpr float kToInteger = 12582912.0f;                // 1.5 * 2^23: for magnitudes below 2^22
constexpr double kToIntegerDouble = 6755399441055744.0;  // 1.5 * 2^52: below 2^51

// What the elements of a group are quantised by.
struct Quantiser {
  float lo;
  float inverse;  // levels / range, 0 for a constant group
  float range;
};

__host__ __device__ constexpr int code_bits(int bits) { return bits == kWideBits ? 16 : bits; }

__device__ __forceinline__ Quantiser quantiser_of(const uniform::Parameters& stored, int bits) {
  const float range = half_to_float(stored.range);
  return {half_to_float(stored.lo), uniform::inverse_step(range, uniform::levels_of(bits)), range};
}

// The low bits of the result are the code; others are not 0.
//
// No element needs to be cut off at `levels`: x - lo <= range, and the two roundings that follow add at most
// levels * 2^-23 + to levels, which rounds to levels.
__device__ __forceinline__ uint32_t uniform_code(float x, float lo, float inverse) {
  return __float_as_uint(__fadd_rn(__fmul_rn(__fsub_rn(x, lo), inverse), kToInteger));
}

// Where the quotient is so near to a half that its rounding must be decided exactly.
static __device__ __noinline__ uint32_t decided_code(float x, float lo, float range, int bits) {
  return progressive::narrow_to(static_cast<uint32_t>(progressive::code_of(x, lo, range)), bits);
}

// kBits 2, 4 or 8. The code at that width is the true quotient (x - lo) * levels / range, rounded. Float32 gets within
// 3 * 2^-24 of it in relative terms; quotients nearer than that to a half are decided in double.
template <int kBits>
__device__ __forceinline__ uint32_t progressive_code(float x, float lo, float inverse, const float* range) {
  constexpr float kSure = 0.5f - ((1 << kBits) - 1) * (1.0f / (1 << 22));
  const float quotient = __fmul_rn(__fsub_rn(x, lo), inverse);
  const float sum = __fadd_rn(quotient, kToInteger);
  if (fabsf(__fsub_rn(quotient, __fsub_rn(sum, kToInteger))) > kSure) return decided_code(x, lo, *range, kBits);
  return __float_as_uint(sum);
}

// 16 bits, the same in double, where the product with a reciprocal is off by less than 2^-34.
__device__ __forceinline__ uint32_t progressive_code16(float x, float lo, double inverse, const float* range) {
  constexpr double kSure = 0.5 - 1.0 / (1 << 30);
  const double quotient = __dmul_rn(__dsub_rn(x, lo), inverse);
  const double sum = __dadd_rn(quotient, kToIntegerDouble);
  if (fabs(__dsub_rn(quotient, __dsub_rn(sum, kToIntegerDouble))) > kSure) return decided_code(x, lo, *range, 16);
  return static_cast<uint32_t>(__double2loint(sum));
}

}  // namespace kvasir::cuda
