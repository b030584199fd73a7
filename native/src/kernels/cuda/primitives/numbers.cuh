// Queries and outputs in the caller's number type.
#pragma once

#include "kernels/cuda/primitives/mma.cuh"
#include "kvasir/types.h"

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

__device__ __forceinline__ float load_number(const void* numbers, ElementType type, int64_t index) {
  if (type == ElementType::kFloat32) return static_cast<const float*>(numbers)[index];
  const uint32_t half = static_cast<const uint16_t*>(numbers)[index];
  return type == ElementType::kFloat16 ? halves_to_floats(half).x : __uint_as_float(half << 16);
}

// The two 16-bit numbers of a word.
__device__ __forceinline__ float2 numbers_of(uint32_t word, ElementType type) {
  if (type == ElementType::kFloat16) return halves_to_floats(word);
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

// Numbers `index`, which is even, and the next.
__device__ __forceinline__ float2 load_pair(const void* numbers, ElementType type, int64_t index) {
  if (type == ElementType::kFloat32) {
    const float* pair = static_cast<const float*>(numbers) + index;
    return make_float2(pair[0], pair[1]);
  }
  return numbers_of(static_cast<const uint32_t*>(numbers)[index / 2], type);
}

// visit(load), where load(index) is load_pair for a type that is known by then.
template <class Visit>
__device__ __forceinline__ void with_pairs(const void* numbers, ElementType type, const Visit& visit) {
  if (type == ElementType::kFloat32) {
    visit([&](int64_t index) { return load_pair(numbers, ElementType::kFloat32, index); });
  } else if (type == ElementType::kBFloat16) {
    visit([&](int64_t index) { return load_pair(numbers, ElementType::kBFloat16, index); });
  } else {
    visit([&](int64_t index) { return load_pair(numbers, ElementType::kFloat16, index); });
  }
}

// Numbers index, index + kStep, ... (kStep even), `kCount` of them. 16-bit numbers are read as the words that hold
// them. Without branches, so that all loads are on their way together, and in few instructions: a switch of types
// around each of sixteen unrolled loads is a kilobyte of code.
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

// load_number without branches.
__device__ __forceinline__ float load_unbranched(const void* numbers, ElementType type, int64_t index) {
  float one[1];
  load_numbers<1, 2>(numbers, type, index, one);
  return one[0];
}

// Rows are scaled to 1 at most before they are quantised. Below the guard the reciprocal would overflow, and nothing is
// lost by calling the row 0.
constexpr float kLeastPeak = 1e-30f;
__device__ __forceinline__ float inverse_peak(float peak) { return peak > kLeastPeak ? 1.0f / peak : 0.0f; }

}  // namespace kvasir::cuda
