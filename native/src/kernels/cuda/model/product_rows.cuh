// Rows on their way into and out of products: device_model.h says how they look.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/numbers.cuh"
#include "kvasir/types.h"

namespace kvasir::cuda {

// What came out of a product. `all` is the number of its elements.
template <bool kExact>
__device__ __forceinline__ float from_product(const void* product, int64_t index, int64_t all) {
  if constexpr (kExact) {
    const float* parts = static_cast<const float*>(product);
    return parts[index] + parts[all + index];
  } else {
    return load_number(product, ElementType::kBFloat16, index);
  }
}

// What goes into one.
template <bool kExact>
__device__ __forceinline__ void to_product(void* rows, int64_t index, int64_t all, float value) {
  uint16_t* parts = static_cast<uint16_t*>(rows);
  uint16_t upper;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(upper) : "f"(value));
  parts[index] = upper;
  if constexpr (kExact) {
    const float taken = __uint_as_float(static_cast<uint32_t>(upper) << 16);
    // An infinite part has no rest.
    store_number(rows, ElementType::kBFloat16, all + index, isinf(taken) ? 0.0f : value - taken);
  }
}

// A dimension of a grid: so many blocks, as far as grids go; kernels step over the rest.
inline unsigned grid_of(int64_t items, int64_t items_of_block) {
  const int64_t blocks = (items + items_of_block - 1) / items_of_block;
  constexpr int64_t kMost = 0x7fffffff;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

}  // namespace kvasir::cuda
