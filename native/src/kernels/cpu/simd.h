// The vectors that kernels of this folder are written over. Sources here are compiled once per instruction set, with
// KVASIR_LEVEL naming it, and everything lives in namespace kvasir::KVASIR_LEVEL so that the copies do not meet. For
// the same reason nothing here instantiates a std:: template: the linker may keep any one copy of those.
//
// Vectors are the compiler's own, so + - * & | << >> and comparisons work on them, lane by lane. Each instruction set
// adds
//
//   kLanes                         lanes of a vector: 16, 8 or 4
//   kRegisters                     vector registers there are
//   F32, I32, U32                  vectors of kLanes floats and 32-bit integers
//   splat(a)                       all lanes a
//   fma(a, b, c)                   a * b + c, rounded once
//   min, max, abs                  of floats; of integers min
//   reciprocal_estimate(a)         1 / a to 8 bits or better
//   round(a), to_float(i)          to the nearest integer, ties to even, and back
//   load_half, store_half          kLanes float16, rounded to nearest even
//   sum, lowest, highest           over the lanes of a vector
//   store_sums(out, a, b, c, d)    the sums of four vectors, side by side
//   store_bytes(out, a, b, c, d)   the lanes of four vectors as 4 * kLanes signed bytes
//   sign_bytes(codes)              8-bit codes as dot_unit wants them: code - kByteBias
//   dot_unit<kBytes>(codes, in, stride, sums)
//                                  the product that all is about: sums[row][v] += the dot products of 16 codes in each
//                                  lane of codes[v] with the 16 signed bytes at in + row * stride; kBytes for 8-bit
//                                  codes
//
// What needs no instruction of its own is below and shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512VNNI__)
#include "kernels/cpu/simd_avx512.h"
#elif defined(__AVX2__)
#include "kernels/cpu/simd_avx2.h"
#else
#include "kernels/cpu/simd_neon.h"
#endif

namespace kvasir::KVASIR_LEVEL {

// 64-byte vectors of a code plane hold 16 lanes, whatever the machine: this many registers each.
constexpr int kPlaneLanes = 16;
static_assert(kPlaneLanes % kLanes == 0, "a plane vector is a whole number of registers");

inline F32 load(const float* from) {
  F32 a;
  memcpy(&a, from, sizeof a);
  return a;
}

inline I32 load(const int32_t* from) {
  I32 a;
  memcpy(&a, from, sizeof a);
  return a;
}

inline U32 load_words(const uint8_t* from) {
  U32 a;
  memcpy(&a, from, sizeof a);
  return a;
}

inline void store(float* to, F32 a) { memcpy(to, &a, sizeof a); }
inline void store(int32_t* to, I32 a) { memcpy(to, &a, sizeof a); }
inline void store_words(uint8_t* to, U32 a) { memcpy(to, &a, sizeof a); }

}  // namespace kvasir::KVASIR_LEVEL
