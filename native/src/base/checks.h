// Checks of arguments that public functions share: what they throw names the value.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "kvasir/error.h"
#include "kvasir/types.h"

namespace kvasir {

[[noreturn]] inline void refuse(const std::string& text) { throw Error(ErrorCode::kInvalidArgument, text); }

inline void require_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) {
    refuse(std::string(name) + " is " + std::to_string(value) + ", not " + std::to_string(least) + ".." +
           std::to_string(most));
  }
}

inline void require_positive(const char* name, int64_t value) {
  if (value < 1) refuse(std::string(name) + " is " + std::to_string(value) + ", not 1 or more");
}

inline void require_pointer(const char* name, const void* pointer) {
  if (pointer == nullptr) refuse(std::string(name) + " is null");
}

// Head dims that caches accept, so that a result always belongs to a cache that can exist.
inline void require_head_dim(int head_dim) {
  if (head_dim < 32 || head_dim > 256 || head_dim % 16 != 0) {
    refuse("head_dim is " + std::to_string(head_dim) + ", not a multiple of 16 in 32..256");
  }
}

// rows: [tokens][width].
inline void require_rows(const float* rows, int64_t tokens, int64_t width, float most = kMaxMagnitude) {
  for (int64_t i = 0; i < tokens * width; ++i) {
    // Negated, so that NaN is refused too.
    if (!(std::fabs(rows[i]) <= most)) {
      throw Error(ErrorCode::kNotFinite, std::to_string(rows[i]) + " at token " + std::to_string(i / width) +
                                             ", element " + std::to_string(i % width));
    }
  }
}

}  // namespace kvasir
