#include "base/x86_features.h"

#include <cpuid.h>

namespace kvasir::x86 {

bool has_half_conversions() {
  constexpr unsigned kF16c = 1u << 29;
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & kF16c) != 0;
}

bool has_tiles() {
  constexpr unsigned kBfloat16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25, kAll = kBfloat16 | kTiles | kInt8;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAll) == kAll;
}

}  // namespace kvasir::x86
