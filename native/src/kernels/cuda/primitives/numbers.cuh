// Queries and outputs in the caller's number type.
//
// Written for few instructions: a switch of types around each of sixteen unrolled loads is a kilobyte of code.
#pragma once

#include "kernels/cuda/primitives/mma.cuh"
#include "kvasir/config.h"

namespace kvasir::cuda {

__device__ __forceinline__ void store_number(void* numbers, ElementType type, int64_t index, float value) {
  if (type == ElementType::kFloat32) {
    static_cast<float*>(numbers)[index] = value;
    return;
  }
  uint16_t bfloat;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bfloat) : "f"(value));
  const auto half = static_cast<uint16_t>(floats_to_halves(value, 0.0f));
  static_cast<uint16_t*>(numbers)[index] = type == ElementType::kFloat16 ? half : bfloat;
}

// Numbers index, index + kStep, ... (kStep even), `kCount` of them. 16-bit numbers are read as the words that hold
// them.
template <int kCount, int kStep>
__device__ __forceinline__ void load_numbers(const void* numbers, ElementType type, int64_t index,
                                             float (&values)[kCount]) {
  const bool wide = type == ElementType::kFloat32;
  const uint32_t* words = static_cast<const uint32_t*>(numbers) + (wide ? index : index / 2);
  const int step = wide ? kStep : kStep / 2;
  const int shift = wide || index % 2 == 0 ? 0 : 16;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint32_t word = words[i * step] >> shift;
    const uint32_t bits = type == ElementType::kBFloat16 ? word << 16 : word;
    values[i] = type == ElementType::kFloat16 ? halves_to_floats(word).x : __uint_as_float(bits);
  }
}

}  // namespace kvasir::cuda
