// lo and range of a group of a column: float16 numbers as those of codec uniform, or a byte each.
//
// The byte of a range has the bits of a float16 after its sign, as many as there are: five of exponent, three of
// mantissa, and zeros behind. The byte of lo counts sixteenths of the range, -128 to 127; what is beyond all finite
// float16 numbers means the last of them. Seven bits times four are no more than a float16 has: read back, both are
// float16 numbers, so that nothing but this knows of bytes.
#pragma once

#include <cmath>
#include <cstring>

#include "base/half.h"
#include "codecs/tiered/format.h"
#include "codecs/uniform/formula.h"

namespace kvasir::tiered {

constexpr int kRangeShift = 7;    // bits of a float16 beyond the byte of a range
constexpr int kLastRange = 0xf7;  // the largest finite one, 61440
constexpr int kLoSteps = 16;      // of a range
constexpr int kLeastLo = -128, kMostLo = 127;
constexpr float kLastHalf = 65504.0f;

// Bytes beyond the last range, which nothing writes, mean that one.
KVASIR_HOST_DEVICE static inline uint16_t range_of_byte(int byte) {
  return static_cast<uint16_t>((byte < kLastRange ? byte : kLastRange) << kRangeShift);
}

KVASIR_HOST_DEVICE static inline uniform::Parameters parameters_of_bytes(int lo, int range) {
  const uint16_t half = range_of_byte(range);
  const float exact = static_cast<float>(lo) * (half_to_float(half) * (1.0f / kLoSteps));
  return {float_to_half(exact < -kLastHalf ? -kLastHalf : exact > kLastHalf ? kLastHalf : exact), half};
}

// The narrowest range that covers the group from the greatest lo that is at most its lowest element. Only a group wider
// than 15/16 of the last range may not be covered: its greatest elements have the last code.
KVASIR_HOST_DEVICE static inline uniform::Parameters byte_parameters_of(float lowest, float highest) {
  const double low = static_cast<double>(lowest + 0.0f), high = static_cast<double>(highest + 0.0f);
  // No range can do that is less than the group's own, or that lo cannot reach it with. One less, for it is rounded.
  const double reach = low < 0 ? -low * kLoSteps / -kLeastLo : high * kLoSteps / (kMostLo + kLoSteps);
  const double least = high - low > reach ? high - low : reach;
  const int first = (half_at_least(least) >> kRangeShift) - 1;
  for (int byte = first > 0 ? first : 0;; ++byte) {
    const double range = static_cast<double>(half_to_float(range_of_byte(byte)));
    const double exact = range > 0 ? floor(low * kLoSteps / range) : 0;
    const double steps = exact > kMostLo ? kMostLo : exact;
    const double lo = steps * range / kLoSteps > -kLastHalf ? steps * range / kLoSteps : -kLastHalf;
    const bool covers = steps >= kLeastLo && lo <= low && lo + range >= high;
    if (covers || byte >= kLastRange)
      return parameters_of_bytes(static_cast<int>(steps), byte < kLastRange ? byte : kLastRange);
  }
}

KVASIR_HOST_DEVICE static inline uniform::Parameters parameters_of(const PageFormat& format, float lowest,
                                                                   float highest) {
  return parameter_bytes(format) == 1 ? byte_parameters_of(lowest, highest) : uniform::parameters_of(lowest, highest);
}

KVASIR_HOST_DEVICE static inline void store_parameters(const Layout& layout, int g, int column,
                                                       const uniform::Parameters& stored, uint8_t* part) {
  uint8_t* const lo = part + layout.lo_offset(g) + static_cast<size_t>(layout.parameter_bytes) * column;
  uint8_t* const range = part + layout.range_offset(g) + static_cast<size_t>(layout.parameter_bytes) * column;
  if (layout.parameter_bytes == 2) {
    memcpy(lo, &stored.lo, 2);
    memcpy(range, &stored.range, 2);
    return;
  }
  const float wide = half_to_float(stored.range);
  // A whole number, but for the lowest, which stands for those below.
  *lo = static_cast<uint8_t>(wide > 0.0f ? static_cast<int>(floorf(half_to_float(stored.lo) * kLoSteps / wide)) : 0);
  *range = static_cast<uint8_t>(stored.range >> kRangeShift);
}

KVASIR_HOST_DEVICE static inline uniform::Parameters load_parameters(const Layout& layout, const uint8_t* part, int g,
                                                                     int column) {
  const uint8_t* const lo = part + layout.lo_offset(g) + static_cast<size_t>(layout.parameter_bytes) * column;
  const uint8_t* const range = part + layout.range_offset(g) + static_cast<size_t>(layout.parameter_bytes) * column;
  if (layout.parameter_bytes == 1) return parameters_of_bytes(static_cast<int8_t>(*lo), *range);
  uniform::Parameters stored;
  memcpy(&stored.lo, lo, 2);
  memcpy(&stored.range, range, 2);
  return stored;
}

}  // namespace kvasir::tiered
