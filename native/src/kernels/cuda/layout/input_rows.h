// Rows as callers append them.
#pragma once

#include <cstdint>

#include "kernels/cuda/layout/staging.h"
#include "kvasir/types.h"

namespace kvasir::cuda {

// Rows that a caller appends, both sides: [tokens][kv_heads][head_dim], or with strides.
//
// Elements must be finite and at most kMaxMagnitude, keys also after scaling. Where one is not, the kernels store 0
// in its place and set refused[0] (keys) or refused[1] (values) to 1; they never set them to 0. So a refused append
// leaves finite rows behind the end, and the caller, who learns of it later, simply does not move the end.
struct InputRows {
  const void* sides[2];  // keys, values; 16-byte aligned
  ElementType types[2];  // of each side
  int64_t tokens;        // rows of each side
  // [kv_heads][head_dim]: keys are divided by it in float32 before rounding; 16-byte aligned, or null.
  const float* key_scaling;
  uint32_t* refused;  // [2]
  // By side, in elements, multiples of 16 bytes; both 0: dense.
  int64_t token_strides[2];
  int64_t head_strides[2];

  // Whether kernels can read these of its tokens.
  bool readable(int64_t first, int64_t count) const {
    for (int side = 0; side < 2; ++side) {
      const int64_t vector = types[side] == ElementType::kFloat32 ? 4 : 8;  // elements in 16 bytes
      if (token_strides[side] % vector != 0 || head_strides[side] % vector != 0 || !aligned(sides[side])) return false;
    }
    return aligned(key_scaling) && refused != nullptr && first >= 0 && count >= 0 && count <= tokens - first;
  }

  // The same, where strides are always given.
  InputRows with_strides(const RowShape& shape) const {
    InputRows rows = *this;
    for (int side = 0; side < 2; ++side) {
      if (token_strides[side] != 0 || head_strides[side] != 0) continue;
      rows.head_strides[side] = shape.head_dim;
      rows.token_strides[side] = int64_t{shape.kv_heads} * shape.head_dim;
    }
    return rows;
  }

 private:
  static bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }
};

}  // namespace kvasir::cuda
