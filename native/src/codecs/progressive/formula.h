// The arithmetic of the progressive codec: 16-bit codes, and the step from 2b bits to b.
//
// A code is that of codecs/uniform/formula.h, computed so that no rounding on the way decides it. Narrowing it to 8, 4
// and 2 bits then gives what quantising x at that width would have given. Cells nest: the upper bits of a code are the
// larger cell. With levels from end to end, a code is (x - lo) / range * (2^16 - 1), rounded to nearest, ties to even,
// and ties are included: 2^2b - 1 is 2^b + 1 times 2^b - 1, and 2^b + 1 is odd, so that codes fall on the same side of
// the same boundaries, and a tie of one width is a tie of the other, with the even neighbour on the same side.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/half.h"
#include "base/host_device.h"
#include "codecs/page_format.h"

namespace kvasir::progressive {

// How a 2b-bit code becomes one of b bits. PM-KVQ compares three ways; for levels from end to end the first is right,
// and the two others are there to be compared with. For cells the second is.
enum class Shift : int {
  kEquivalent = 0,  // what quantising at b bits would have given, with levels from end to end
  kDirect = 1,      // the upper half of the bits; parameters stay. What quantising would have given, with cells
  kModified = 2,    // the same, with parameters such that a code stands for the mean of those that it replaces
};

// The numbers of a PageFormat.
enum Number : int { kFloor = 0, kShift = 1 };
KVASIR_HOST_DEVICE static inline int floor_of(const PageFormat& format) {
  return static_cast<int>(format.numbers[kFloor]);
}
KVASIR_HOST_DEVICE static inline Shift shift_of(const PageFormat& format) {
  return static_cast<Shift>(format.numbers[kShift]);
}

// Of the steps of 16-bit codes: see uniform::Codes.
KVASIR_HOST_DEVICE constexpr double steps_of(Grid grid) { return grid == Grid::kCells ? 65536.0 : 65535.0; }

// The difference of float16 values is exact in double, and so is its product with the steps, or as good as always: the
// one rounding of the quotient can move it neither over a half nor to a whole number. (A quotient of cells that is no
// whole number is at least 2^-25 away from one: its denominator is a float16 range in units of 2^-24, less 16 bits.)
KVASIR_HOST_DEVICE static inline int code_of(float x, float lo, float range, Grid grid) {
  if (!(range > 0.0f)) return 0;
  const double quotient = (static_cast<double>(x) - lo) * steps_of(grid) / range;
  const int code = static_cast<int>(grid == Grid::kCells ? quotient : rint(quotient));
  return code < 65535 ? code : 65535;
}

// 2b -> b bits, b = `bits`; PM-KVQ's equivalent right shift. The product stays below 2^32.
KVASIR_HOST_DEVICE static inline uint32_t narrow(uint32_t code, int bits) {
  const uint32_t factor = (1u << 2 * bits) - (1u << bits) + 1;
  return factor * (code + (1u << (bits - 1))) >> 3 * bits;
}

// From 16 bits down to `bits`: pages are sealed at any width with the codes that shrinking would have left them.
KVASIR_HOST_DEVICE static inline uint32_t narrow_to(uint32_t code, int bits, Shift shift) {
  if (shift != Shift::kEquivalent) return code >> (16 - bits);
  for (int b = 8; b >= bits; b /= 2) code = narrow(code, b);
  return code;
}

// The parameters of a group after a kModified step to `bits`: step' = 2^b step, lo' = lo + (step' - step) / 2.
KVASIR_HOST_DEVICE static inline void modify_parameters(int bits, uint16_t* lo, uint16_t* range) {
  const double wide = half_to_float(*range);
  const double levels = (1 << bits) - 1;
  const double step = wide / ((1 << bits) + 1) / levels;
  *lo = float_to_half(static_cast<float>(half_to_float(*lo) + 0.5 * levels * step));
  *range = float_to_half(static_cast<float>(wide * (1 << bits) / ((1 << bits) + 1)));
}

// The same from 16 bits down to `bits`.
KVASIR_HOST_DEVICE static inline void modify_parameters_to(int bits, uint16_t* lo, uint16_t* range) {
  for (int b = 8; b >= bits; b /= 2) modify_parameters(b, lo, range);
}

}  // namespace kvasir::progressive
