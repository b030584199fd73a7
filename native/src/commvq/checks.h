// Checks that all of CommVQ shares.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "kvasir/types.h"
#include "kvasir/error.h"

namespace kvasir::commvq {

[[noreturn]] inline void refuse(const std::string& text) { throw Error(ErrorCode::kInvalidArgument, text); }

inline void require_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) {
    refuse(std::string(name) + " is " + std::to_string(value) + ", not " + std::to_string(least) + ".." +
           std::to_string(most));
  }
}

inline void require_pointer(const char* name, const void* pointer) {
  if (pointer == nullptr) refuse(std::string(name) + " is null");
}

inline void require_head_dim(int head_dim) {
  if (head_dim < 32 || head_dim > 256 || head_dim % 16 != 0) {
    refuse("head_dim is " + std::to_string(head_dim) + ", not a multiple of 16 in 32..256");
  }
}

inline void require_value_shape(int width, int codes) {
  if (width < 16 || width > 65536 || width % 16 != 0) {
    refuse("width is " + std::to_string(width) + ", not a multiple of 16 in 16..65536");
  }
  if (codes < 16 || codes > 16384 || codes % 16 != 0) {
    refuse("codes is " + std::to_string(codes) + ", not a multiple of 16 in 16..16384");
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

}  // namespace kvasir::commvq
