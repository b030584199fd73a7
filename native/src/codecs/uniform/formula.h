// The arithmetic of the uniform codec, one group and one element at a time; docs/format.md states it in words.
//
// Float32 operations in exactly this order, without contraction: all backends must produce the same bytes.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/half.h"
#include "base/host_device.h"
#include "codecs/page_format.h"

namespace kvasir::uniform {

// The stored parameters of a group.
struct Parameters {
  uint16_t lo;     // float16
  uint16_t range;  // float16, rounded up
};

// lo is rounded down and range up, so that lo + range covers the group. For float16 values lo is exact, and the
// difference is exact in double. Adding 0 turns -0 into +0: which of the two is lowest would depend on the order of
// comparisons.
KVASIR_HOST_DEVICE static inline Parameters parameters_of(float lowest, float highest) {
  const uint16_t lo = half_at_most(lowest + 0.0f);
  const double range = static_cast<double>(highest + 0.0f) - static_cast<double>(half_to_float(lo));
  return {lo, half_at_least(range)};
}

// The one place where bits and grid become numbers. ENDS puts the first code at lo and the last at lo + range; CELLS
// cuts the range into 2^n equal cells and puts each code into the middle of its own. An element is
//
//   base + code * step,   step = range / steps,   base = lo + centre * step
//
// on both grids, so what reads codes needs no more than these. Dropping the lowest bits of a code of CELLS gives the
// code of fewer and larger cells in the same range.
struct Codes {
  int last;      // the highest code, 2^n - 1
  float steps;   // that the range has
  float centre;  // of a cell, in steps
  bool cells;    // an element belongs to the cell that it lies in, else to the nearest code
};

KVASIR_HOST_DEVICE constexpr Codes codes_of(int bits, Grid grid) {
  const int last = (1 << bits) - 1;
  return grid == Grid::kCells ? Codes{last, static_cast<float>(last + 1), 0.5f, true}
                              : Codes{last, static_cast<float>(last), 0.0f, false};
}

// Multiplies (x - lo) to give a code; 0 makes every code of a constant group 0.
KVASIR_HOST_DEVICE static inline float inverse_step(float range, const Codes& codes) {
  return range > 0.0f ? codes.steps / range : 0.0f;
}

KVASIR_HOST_DEVICE static inline float step_of(float range, const Codes& codes) { return range / codes.steps; }

// The element of code 0. The product is exact, so that a contraction would change nothing.
KVASIR_HOST_DEVICE static inline float base_of(float lo, float step, const Codes& codes) {
  return lo + codes.centre * step;
}

// x is at least lo: to drop the fraction is to round down.
KVASIR_HOST_DEVICE static inline int encode_element(float x, float lo, float inverse_step, const Codes& codes) {
  const float quotient = (x - lo) * inverse_step;
  const int code = static_cast<int>(codes.cells ? quotient : rintf(quotient));
  return code < codes.last ? code : codes.last;
}

KVASIR_HOST_DEVICE static inline float decode_element(int code, float base, float step) {
  return base + static_cast<float>(code) * step;
}

}  // namespace kvasir::uniform
