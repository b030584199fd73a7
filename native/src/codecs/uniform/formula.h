// The arithmetic of the uniform codec, one group and one element at a time; docs/format.md states it in words.
//
// Float32 operations in exactly this order, without contraction: all backends must produce the same bytes.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/half.h"
#include "base/host_device.h"

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

KVASIR_HOST_DEVICE static inline int levels_of(int bits) { return (1 << bits) - 1; }

// Multiplies (x - lo) to give a code; 0 makes every code of a constant group 0.
KVASIR_HOST_DEVICE static inline float inverse_step(float range, int levels) {
  return range > 0.0f ? static_cast<float>(levels) / range : 0.0f;
}

KVASIR_HOST_DEVICE static inline float step_of(float range, int levels) { return range / static_cast<float>(levels); }

KVASIR_HOST_DEVICE static inline int encode_element(float x, float lo, float inverse_step, int levels) {
  const int code = static_cast<int>(rintf((x - lo) * inverse_step));
  return code < levels ? code : levels;
}

KVASIR_HOST_DEVICE static inline float decode_element(int code, float lo, float step) {
  return lo + static_cast<float>(code) * step;
}

}  // namespace kvasir::uniform
