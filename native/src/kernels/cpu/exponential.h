// exp over a vector, for softmax weights.
#pragma once

#include "kernels/cpu/simd.h"

namespace kvasir::KVASIR_LEVEL {

// For a <= 0, -infinity included: relative error below 2e-7, and 0 where the result would not be a normal float. NaN
// stays NaN.
inline F32 exponential(F32 a) {
  const F32 smallest = splat(-87.33654f);  // ln 2^-126
  const F32 bounded = max(smallest, a);    // in this order: of a NaN and a number x86 takes the second
  // a = n * ln 2 + f with |f| <= ln 2 / 2. The first part of ln 2 has few bits, so its product with n is exact.
  const I32 n = round(bounded * splat(1.44269504f));
  F32 f = fma(to_float(n), splat(-0.693359375f), bounded);
  f = fma(to_float(n), splat(2.12194440e-4f), f);
  // e^f as the polynomial of degree 5 that begins with 1 + f and has the smallest relative error there, 1.05e-7.
  F32 power = fma(splat(0.00831250101f), f, splat(0.0418903306f));
  power = fma(power, f, splat(0.166671157f));
  power = fma(power, f, splat(0.499992311f));
  power = fma(power, f, splat(1.0f));
  power = fma(power, f, splat(1.0f));
  const F32 scaled = (F32)((I32)power + (n << 23));
  return a < smallest ? splat(0.0f) : scaled;
}

}  // namespace kvasir::KVASIR_LEVEL
