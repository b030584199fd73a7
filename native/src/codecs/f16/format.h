// Page layout of the f16 codec: uint16 row[kPageTokens][head_dim], IEEE float16 bits.
#pragma once

#include <cstddef>

#include "kvasir/types.h"

namespace kvasir::f16 {

constexpr size_t page_bytes(int head_dim) { return sizeof(unsigned short) * kPageTokens * head_dim; }
static_assert(page_bytes(32) % 64 == 0, "page parts start at multiples of 64");

}  // namespace kvasir::f16
