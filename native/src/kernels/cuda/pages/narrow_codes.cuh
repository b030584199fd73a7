// Codes of 2b bits to b bits, many in a word: progressive::narrow and its two variants, without products.
//
// With h and l the upper and lower b bits, a code is (2^b + 1) h + (l - h), and the rounded quotient by 2^b + 1 is h,
// one more where l - h > 2^(b-1), or one less where h - l > 2^(b-1).
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace kvasir::cuda {

// Four codes of 16 bits, their low and high bytes, to four of 8. The difference of two bytes exceeds 128 only where one
// has its top bit set, the other has not, and the low seven bits of the first are greater as well.
KVASIR_HOST_DEVICE inline uint32_t narrow_to_8(uint32_t low, uint32_t high, bool rounded) {
  if (!rounded) return high;
  const uint32_t low7 = low & 0x7f7f7f7fu, high7 = high & 0x7f7f7f7fu;
  const uint32_t low_greater = (low | 0x80808080u) - high7 - 0x01010101u;  // top bit of each byte
  const uint32_t high_greater = (high | 0x80808080u) - low7 - 0x01010101u;
  const uint32_t up = low_greater & low & ~high & 0x80808080u;
  const uint32_t down = high_greater & high & ~low & 0x80808080u;
  return high + (up >> 7) - (down >> 7);
}

// Four codes of 8 bits to four of 4, in the low halves of bytes.
KVASIR_HOST_DEVICE inline uint32_t narrow_to_4(uint32_t codes, bool rounded) {
  const uint32_t low = codes & 0x0f0f0f0fu, high = codes >> 4 & 0x0f0f0f0fu;
  if (!rounded) return high;
  // 119 + difference reaches 128 where the difference is 9 or more.
  const uint32_t up = low + 0x77777777u - high, down = high + 0x77777777u - low;
  return high + (up >> 7 & 0x01010101u) - (down >> 7 & 0x01010101u);
}

// Eight codes of 4 bits to eight of 2, four bits of each byte: 0011 becomes 01, 1100 becomes 10, all others lose their
// low half.
KVASIR_HOST_DEVICE inline uint32_t narrow_to_2(uint32_t codes, bool rounded) {
  uint32_t high = codes >> 2 & 0x33333333u;
  if (rounded) {
    const uint32_t unlike = codes ^ codes >> 1;  // bits 0 and 2 of a code: its neighbours differ
    high ^= ~unlike & ~(unlike >> 2) & (codes ^ codes >> 2) & 0x11111111u;
  }
  return (high | high >> 2) & 0x0f0f0f0fu;
}

// A word of narrow codes from two words of wide ones. Both page layouts pair words so that this is all: low and high
// bytes of 16-bit codes, or words whose codes take the lower and the upper half of each byte.
KVASIR_HOST_DEVICE inline uint32_t narrow_words(uint32_t first, uint32_t second, int to_bits, bool rounded) {
  if (to_bits == 8) return narrow_to_8(first, second, rounded);
  if (to_bits == 4) return narrow_to_4(first, rounded) | narrow_to_4(second, rounded) << 4;
  return narrow_to_2(first, rounded) | narrow_to_2(second, rounded) << 4;
}

}  // namespace kvasir::cuda
