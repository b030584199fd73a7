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
//   I16, U16                       vectors of 2 * kLanes 16-bit integers
//   splat(a)                       all lanes a
//   fma(a, b, c)                   a * b + c, rounded once
//   min, max, abs                  of floats; of integers min
//   reciprocal_estimate(a)         1 / a to 8 bits or better
//   round(a), to_float(i)          to the nearest integer, ties to even, and back
//   truncate(a)                    to an integer, without the fraction
//   load_half, store_half          kLanes float16, rounded to nearest even
//   sum, lowest, highest           over the lanes of a vector
//   add_first, add_second, subtract_second(sums, pairs)
//                                  sums with the first or second 16-bit number of each 32-bit lane of pairs
//   PairSums                       what add_pairs adds up in, made by {}
//   add_pairs(sums, a, b)          adds both products of the 16-bit numbers of each 32-bit lane of a and b
//   total(sums)                    of each lane
//   numbers<kBits>(from)           2 * kLanes packed numbers of 8 to 12 bits, lowest bit first; reads up to 8 bytes
//                                  beyond them
//   sums_by_fours(a, b, c, d)      sums of a's lanes in lanes 0, 4, 8 ..., of b's in 1, 5, 9 ..., of c's, of d's
//   store_fours(out, a)            the sums of lanes 0, 4, 8 ... of a, of lanes 1, 5, 9 ..., and so on: four floats
//   store_bytes(out, a, b, c, d)   the lanes of four vectors as 4 * kLanes signed bytes
//   sign_bytes(codes)              8-bit codes as dot_unit wants them: code - kByteBias
//   dot_unit<kBytes>(codes, in, stride, sums)
//                                  the product that all is about: sums[row][v] += the dot products of 16 codes in each
//                                  lane of codes[v] with the 16 signed bytes at in + row * stride; kBytes for 8-bit
//                                  codes
//   arrange_rows(bytes, rows, stride, begin, end)
//                                  makes rows of signed bytes, x from begin to end (multiples of 16), what dot_unit<,
//                                  rows> takes, in place; nothing where it takes them as they are
//   settle(sums)                   makes sums what dot_unit is said to add up, at its end; nothing where they are that
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
#include "kernels/cpu/simd_neon_dots.h"
#endif

namespace kvasir::KVASIR_LEVEL {

// 64-byte vectors of a code plane hold 16 lanes, whatever the machine: this many registers each.
constexpr int kPlaneLanes = 16;
static_assert(kPlaneLanes % kLanes == 0, "a plane vector is a whole number of registers");

#if !defined(__ARM_FEATURE_MATMUL_INT8)
inline void arrange_rows(int8_t*, int, int, int, int) {}
template <int kRows, int kVectors>
inline void settle(I32 (&)[kRows][kVectors]) {}
#endif

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

inline I16 load(const int16_t* from) {
  I16 a;
  memcpy(&a, from, sizeof a);
  return a;
}

// The first `count` lanes, 0 in the others.
inline F32 load_some(const float* from, int count) {
  alignas(64) float lanes[kLanes] = {};
  for (int i = 0; i < count; ++i) lanes[i] = from[i];
  return load(lanes);
}

// The sums of four vectors, side by side.
inline void store_sums(float* out, F32 a, F32 b, F32 c, F32 d) { store_fours(out, sums_by_fours(a, b, c, d)); }

inline void store(float* to, F32 a) { memcpy(to, &a, sizeof a); }
inline void store(int32_t* to, I32 a) { memcpy(to, &a, sizeof a); }
inline void store(uint16_t* to, U16 a) { memcpy(to, &a, sizeof a); }
inline void store_words(uint8_t* to, U32 a) { memcpy(to, &a, sizeof a); }

}  // namespace kvasir::KVASIR_LEVEL
