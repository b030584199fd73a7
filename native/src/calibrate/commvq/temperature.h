// The range of temperatures: what is divided by them stays within float32, and beyond it choices change no more.
#pragma once

#include <string>

#include "base/checks.h"

namespace kvasir::commvq {

constexpr double kLeastTemperature = 1e-12, kMostTemperature = 1e6;

inline void require_temperature(double temperature) {
  // Negated, so that NaN is refused too.
  if (!(temperature >= kLeastTemperature && temperature <= kMostTemperature)) {
    refuse("a temperature is " + number_text(temperature, 9) + ", not 1e-12..1e6");
  }
}

}  // namespace kvasir::commvq
