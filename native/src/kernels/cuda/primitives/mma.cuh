// The instructions that attention is made of, one function each.
//
// Fragments, with g = lane / 4 and k = lane % 4: of A a lane holds rows g and g + 8, of B column g, of C rows g and g +
// 8 in columns 2k and 2k + 1.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace kvasir::cuda {

// c += A (16 x 32, unsigned bytes) * B (32 x 8, signed or unsigned bytes).
template <bool kSigned>
__device__ __forceinline__ void mma_bytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// The same of signed bytes on both sides.
__device__ __forceinline__ void mma_digits(int (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// c += A (16 x 16, unsigned bytes) * B (16 x 8, signed bytes).
__device__ __forceinline__ void mma_signed_bytes(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// c += A (16 x 16 float16) * B (16 x 8 float16), accumulated in float32.
__device__ __forceinline__ void mma_halves(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// c += A (16 x 8 float16) * B (8 x 8 float16), accumulated in float32.
__device__ __forceinline__ void mma_few_halves(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// Transposes an 8 x 8 matrix of 16-bit elements of which a lane holds row g, columns 2k and 2k + 1.
__device__ __forceinline__ uint32_t transpose(uint32_t row) {
  uint32_t column;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
  return column;
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x within two units of the last place, for x that is neither 0 nor subnormal, nor its reciprocal.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Over the four lanes that share lane / 4.
__device__ __forceinline__ float max_over_columns(float x) {
  for (int mask = 1; mask < 4; mask *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
  return x;
}

__device__ __forceinline__ float sum_over_columns(float x) {
  for (int mask = 1; mask < 4; mask *= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// Over the eight lanes that share lane % 4.
__device__ __forceinline__ float max_over_rows(float x) {
  for (int mask = 4; mask < 32; mask *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
  return x;
}

__device__ __forceinline__ float sum_over_rows(float x) {
  for (int mask = 4; mask < 32; mask *= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

__device__ __forceinline__ float max_over_warp(float x) {
  for (int mask = 1; mask < 32; mask *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
  return x;
}

// The same in one step: floats as whole numbers of the same order.
__device__ __forceinline__ float highest_of_warp(float x) {
  const auto flip = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  return __int_as_float(flip(__reduce_max_sync(0xffffffffu, flip(__float_as_int(x)))));
}

template <class Number>
__device__ __forceinline__ Number sum_over_warp(Number x) {
  for (int mask = 1; mask < 32; mask *= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// The least value of the lanes that differ in lane % kLanes, and its index; the least index of equals.
template <int kLanes>
__device__ __forceinline__ void least_over_lanes(float& value, int& index) {
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, mask);
    const int its = __shfl_xor_sync(0xffffffffu, index, mask);
    if (other < value || (other == value && its < index)) {
      value = other;
      index = its;
    }
  }
}

// Bits of two float16, {low, high}.
__device__ __forceinline__ __half2 as_halves(uint32_t word) { return *reinterpret_cast<__half2*>(&word); }
__device__ __forceinline__ uint32_t as_word(__half2 halves) { return *reinterpret_cast<uint32_t*>(&halves); }

// {low, high} as two floats.
__device__ __forceinline__ float2 halves_to_floats(uint32_t pair) {
  float2 floats;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(floats.x), "=f"(floats.y)
      : "r"(pair));
  return floats;
}

// {low, high}, rounded to float16.
__device__ __forceinline__ uint32_t floats_to_halves(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Four 8 x 8 matrices of 16-bit elements from shared memory. Lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ uint4 load_matrices(uint32_t address) {
  uint4 words;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address));
  return words;
}

__device__ __forceinline__ uint4 load_transposed_matrices(uint32_t address) {
  uint4 words;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address));
  return words;
}

}  // namespace kvasir::cuda
