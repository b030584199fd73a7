// simd.h for AVX-512 F, BW, VL, DQ and VNNI. Include simd.h, not this.
#pragma once

// GCC 12 takes the "undefined" operands inside its own intrinsics for uninitialised variables (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>
#include <cstring>

namespace kvasir::KVASIR_LEVEL {

constexpr int kLanes = 16;
constexpr int kRegisters = 32;

using F32 = __m512;
typedef int32_t I32 __attribute__((vector_size(64)));
typedef uint32_t U32 __attribute__((vector_size(64)));
typedef int16_t I16 __attribute__((vector_size(64)));
typedef uint16_t U16 __attribute__((vector_size(64)));

inline F32 splat(float a) { return _mm512_set1_ps(a); }
inline I32 splat(int32_t a) { return (I32)_mm512_set1_epi32(a); }

inline F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
inline F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
inline F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
inline F32 abs(F32 a) { return _mm512_abs_ps(a); }
inline I32 min(I32 a, I32 b) { return (I32)_mm512_min_epi32((__m512i)a, (__m512i)b); }

inline F32 reciprocal_estimate(F32 a) { return _mm512_rcp14_ps(a); }

inline I32 round(F32 a) { return (I32)_mm512_cvtps_epi32(a); }
inline I32 truncate(F32 a) { return (I32)_mm512_cvttps_epi32(a); }
inline F32 to_float(I32 a) { return _mm512_cvtepi32_ps((__m512i)a); }

inline F32 load_half(const uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline void store_half(uint16_t* to, F32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

inline float sum(F32 a) { return _mm512_reduce_add_ps(a); }
inline int32_t sum(I32 a) { return _mm512_reduce_add_epi32((__m512i)a); }
inline float lowest(F32 a) { return _mm512_reduce_min_ps(a); }
inline float highest(F32 a) { return _mm512_reduce_max_ps(a); }

// Eight numbers begin at a whole byte: each 128 bits take eight. A number and the bits before it in its first byte fit
// 16 bits; a product pushes out what is above, a shift what is below.
template <int kBits>
inline U16 numbers(const uint8_t* from) {
  const auto eight = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * kBits)); };
  __m512i bytes = _mm512_castsi128_si512(eight(0));
  bytes = _mm512_inserti32x4(bytes, eight(1), 1);
  bytes = _mm512_inserti32x4(bytes, eight(2), 2);
  bytes = _mm512_inserti32x4(bytes, eight(3), 3);
  alignas(16) uint8_t places[16];
  alignas(16) uint16_t factors[8];
  for (int i = 0; i < 8; ++i) {
    places[2 * i] = static_cast<uint8_t>(i * kBits / 8);
    places[2 * i + 1] = static_cast<uint8_t>(i * kBits / 8 + 1);
    factors[i] = static_cast<uint16_t>(1 << (16 - kBits - i * kBits % 8));
  }
  const auto all = [](const void* table) {
    return _mm512_broadcast_i32x4(_mm_load_si128(static_cast<const __m128i*>(table)));
  };
  return (U16)_mm512_mullo_epi16(_mm512_shuffle_epi8(bytes, all(places)), all(factors)) >> (16 - kBits);
}

inline I32 add_first(I32 sums, I16 pairs) {
  return (I32)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)pairs, _mm512_set1_epi32(0x00000001));
}
inline I32 add_second(I32 sums, I16 pairs) {
  return (I32)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)pairs, _mm512_set1_epi32(0x00010000));
}
inline I32 subtract_second(I32 sums, I16 pairs) {
  return (I32)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
}

struct PairSums {
  I32 of;
};
inline void add_pairs(PairSums& sums, I16 a, I16 b) {
  sums.of = (I32)_mm512_dpwssd_epi32((__m512i)sums.of, (__m512i)a, (__m512i)b);
}
inline I32 total(const PairSums& sums) { return sums.of; }

inline F32 sums_by_fours(F32 a, F32 b, F32 c, F32 d) {
  const F32 ab = _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
  const F32 cd = _mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d);
  return (F32)_mm512_unpacklo_pd((__m512d)ab, (__m512d)cd) + (F32)_mm512_unpackhi_pd((__m512d)ab, (__m512d)cd);
}
inline void store_fours(float* out, F32 a) {
  const __m256 halves = _mm512_castps512_ps256(a) + _mm512_extractf32x8_ps(a, 1);
  _mm_storeu_ps(out, _mm256_castps256_ps128(halves) + _mm256_extractf128_ps(halves, 1));
}

inline void store_bytes(int8_t* out, I32 a, I32 b, I32 c, I32 d) {
  const __m512i ab = _mm512_packs_epi32((__m512i)a, (__m512i)b);
  const __m512i cd = _mm512_packs_epi32((__m512i)c, (__m512i)d);
  // Packing works within 128 bits: words come out as a0 b0 c0 d0 a1 b1 ..., four bytes each.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(out, _mm512_permutexvar_epi32(order, _mm512_packs_epi16(ab, cd)));
}

// Rows of a square become its columns.
inline void turn_square(F32 (&a)[16]) {
  F32 b[16];
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_ps(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_ps(a[r], a[r + 1]);
  }
  // a[r + i], r a multiple of 4: columns i, i + 4, i + 8 and i + 12 of rows r to r + 3.
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4) {
    a[r] = (F32)_mm512_unpacklo_pd((__m512d)b[r], (__m512d)b[r + 2]);
    a[r + 1] = (F32)_mm512_unpackhi_pd((__m512d)b[r], (__m512d)b[r + 2]);
    a[r + 2] = (F32)_mm512_unpacklo_pd((__m512d)b[r + 1], (__m512d)b[r + 3]);
    a[r + 3] = (F32)_mm512_unpackhi_pd((__m512d)b[r + 1], (__m512d)b[r + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_shuffle_f32x4(a[i], a[4 + i], 0x88);
    b[4 + i] = _mm512_shuffle_f32x4(a[i], a[4 + i], 0xdd);
    b[8 + i] = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0x88);
    b[12 + i] = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm512_shuffle_f32x4(b[i], b[8 + i], 0x88);
    a[4 + i] = _mm512_shuffle_f32x4(b[4 + i], b[12 + i], 0x88);
    a[8 + i] = _mm512_shuffle_f32x4(b[i], b[8 + i], 0xdd);
    a[12 + i] = _mm512_shuffle_f32x4(b[4 + i], b[12 + i], 0xdd);
  }
}

// VPDPBUSD multiplies unsigned by signed bytes: codes stay as they are.
constexpr int kByteBias = 0;
inline U32 sign_bytes(U32 codes) { return codes; }

template <bool kBytes, int kRows, int kVectors>
inline void dot_unit(const U32 (&codes)[kVectors][4], const int8_t* in, int stride, I32 (&sums)[kRows][kVectors]) {
  for (int step = 0; step < 4; ++step) {
    for (int r = 0; r < kRows; ++r) {
      int32_t four;
      memcpy(&four, in + r * stride + 4 * step, sizeof four);
      const __m512i factors = _mm512_set1_epi32(four);
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = (I32)_mm512_dpbusd_epi32((__m512i)sums[r][v], (__m512i)codes[v][step], factors);
      }
    }
  }
}

}  // namespace kvasir::KVASIR_LEVEL
