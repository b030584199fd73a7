// The whole numbers in which rows are multiplied with the inverse of a basis: products of such add up to the same in
// any order, so that all machines may add them as they like and find the same coefficients.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "base/host_device.h"

namespace kvasir {

// Numbers have 16 bits, and halves that can be signed bytes, which some machines multiply fastest.
constexpr int kMostNumber = 127 * 257;

// Rows are divided by about the root of their mean square, at worst by that over 1.1: so their squares add up to at
// most 1.1^2 d, and no element is beyond the root of that. row_bits: the most bits behind the point with which such an
// element is a number; row_scale: what an element of 1 becomes, a power of two.
KVASIR_HOST_DEVICE constexpr int row_bits(int head_dim) {
  int bits = 0;
  while ((int64_t{121} * head_dim << 2 * (bits + 1)) <= int64_t{100} * kMostNumber * kMostNumber) ++bits;
  return bits;
}
KVASIR_HOST_DEVICE constexpr float row_scale(int head_dim) { return static_cast<float>(1 << row_bits(head_dim)); }

// x * scale to the nearest even, by an addition after which it stands in the lowest bits. Those bits, counted from
// behind infinity on, have all that is negative or no number below what is positive: so limits are compared as whole
// numbers, which compilers vectorise, and rows that are not finite get numbers, too: NaN the lowest. `scale` is
// row_scale where x is divided, or row_scale over what x is to be divided by: products are the same.
KVASIR_HOST_DEVICE static inline int16_t row_number(float x, float scale) {
  constexpr uint32_t kWhole = 0x4B400000u, kBehind = 0x7F800001u;  // 1.5 * 2^23, and what follows infinity
  constexpr uint32_t kZero = kWhole - kBehind;
  const float scaled = x * scale;
  const uint32_t number = float_bits(scaled + 12582912.0f) - kBehind;
  const uint32_t above = number > kZero - kMostNumber ? number : kZero - kMostNumber;
  const uint32_t within = above < kZero + kMostNumber ? above : kZero + kMostNumber;
  return static_cast<int16_t>(static_cast<int32_t>(within - kZero));
}

}  // namespace kvasir
