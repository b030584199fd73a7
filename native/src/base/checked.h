// Arithmetic on sizes that come from users: overflow is an error, not a small buffer.
#pragma once

#include <cstdint>
#include <string>

#include "kvasir/error.h"

namespace kvasir {

inline int64_t checked_multiply(int64_t a, int64_t b, const char* what) {
  int64_t product;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(what) + ": " + std::to_string(a) + " * " + std::to_string(b) + " overflows");
  }
  return product;
}

inline int64_t checked_add(int64_t a, int64_t b, const char* what) {
  int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(what) + ": " + std::to_string(a) + " + " + std::to_string(b) + " overflows");
  }
  return sum;
}

}  // namespace kvasir
