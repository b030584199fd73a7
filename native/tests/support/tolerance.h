// What attention may be off by, in one place.
//
// kvasir/config.h promises, against double precision over the decoded page, for data without extreme outliers:
// NMSE <= 1e-6 in exact mode and <= 1e-4 in fast mode. Where keys and values are float16 rows there is float32
// arithmetic alone: a score of d <= 256 terms is off by about sqrt(d) * 2^-24 of its size, a weight by as much, and so
// is an output; an NMSE of (64 * 2^-24)^2 = 1.5e-11 leaves a factor of four on the root.
#pragma once

#include "kvasir/types.h"

namespace support {

constexpr double kExactNmse = 1e-6;
constexpr double kFastNmse = 1e-4;
constexpr double kFloatNmse = (64 * 0x1p-24) * (64 * 0x1p-24);

// Two results that are each within `nmse` of the truth are within this of each other.
constexpr double between_two(double nmse) { return 4 * nmse; }

constexpr double nmse_limit(kvasir::Precision precision, bool float16_only) {
  return float16_only ? kFloatNmse : precision == kvasir::Precision::kFast ? kFastNmse : kExactNmse;
}

}  // namespace support
