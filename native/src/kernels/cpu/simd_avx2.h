// simd.h for AVX2, FMA and F16C. Include simd.h, not this.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace kvasir::KVASIR_LEVEL {

constexpr int kLanes = 8;
constexpr int kRegisters = 16;

using F32 = __m256;
typedef int32_t I32 __attribute__((vector_size(32)));
typedef uint32_t U32 __attribute__((vector_size(32)));
typedef int16_t I16 __attribute__((vector_size(32)));
typedef uint16_t U16 __attribute__((vector_size(32)));

inline F32 splat(float a) { return _mm256_set1_ps(a); }
inline I32 splat(int32_t a) { return (I32)_mm256_set1_epi32(a); }

inline F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
inline F32 min(F32 a, F32 b) { return _mm256_min_ps(a, b); }
inline F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
inline F32 abs(F32 a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline I32 min(I32 a, I32 b) { return (I32)_mm256_min_epi32((__m256i)a, (__m256i)b); }

inline F32 reciprocal_estimate(F32 a) { return _mm256_rcp_ps(a); }

inline I32 round(F32 a) { return (I32)_mm256_cvtps_epi32(a); }
inline I32 truncate(F32 a) { return (I32)_mm256_cvttps_epi32(a); }
inline F32 to_float(I32 a) { return _mm256_cvtepi32_ps((__m256i)a); }

inline F32 load_half(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline void store_half(uint16_t* to, F32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

// Eight numbers begin at a whole byte: each 128 bits take eight. A number and the bits before it in its first byte fit
// 16 bits; a product pushes out what is above, a shift what is below.
template <int kBits>
inline U16 numbers(const uint8_t* from) {
  const auto eight = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * kBits)); };
  alignas(16) uint8_t places[16];
  alignas(16) uint16_t factors[8];
  for (int i = 0; i < 8; ++i) {
    places[2 * i] = static_cast<uint8_t>(i * kBits / 8);
    places[2 * i + 1] = static_cast<uint8_t>(i * kBits / 8 + 1);
    factors[i] = static_cast<uint16_t>(1 << (16 - kBits - i * kBits % 8));
  }
  const auto all = [](const void* table) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(static_cast<const __m128i*>(table)));
  };
  const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(eight(0)), eight(1), 1);
  return (U16)_mm256_mullo_epi16(_mm256_shuffle_epi8(bytes, all(places)), all(factors)) >> (16 - kBits);
}

inline I32 add_first(I32 sums, I16 pairs) {
  return sums + (I32)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi32(0x00000001));
}
inline I32 add_second(I32 sums, I16 pairs) { return sums + ((I32)pairs >> 16); }
inline I32 subtract_second(I32 sums, I16 pairs) { return sums - ((I32)pairs >> 16); }

struct PairSums {
  I32 of;
};
inline void add_pairs(PairSums& sums, I16 a, I16 b) {
  sums.of = (I32)_mm256_add_epi32((__m256i)sums.of, _mm256_madd_epi16((__m256i)a, (__m256i)b));
}
inline I32 total(const PairSums& sums) { return sums.of; }

inline F32 sums_by_fours(F32 a, F32 b, F32 c, F32 d) {
  return _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
}
inline __m128 fold(F32 a) { return _mm256_castps256_ps128(a) + _mm256_extractf128_ps(a, 1); }
inline void store_fours(float* out, F32 a) { _mm_storeu_ps(out, fold(a)); }
inline float sum(F32 a) { return fold(sums_by_fours(a, a, a, a))[0]; }

inline int32_t sum(I32 a) {
  int32_t total = 0;
  for (int i = 0; i < kLanes; ++i) total += a[i];
  return total;
}

inline float highest(F32 a) {
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_max_ps(most, _mm_movehdup_ps(most))[0];
}
inline float lowest(F32 a) { return -highest(-a); }

inline void store_bytes(int8_t* out, I32 a, I32 b, I32 c, I32 d) {
  const __m256i ab = _mm256_packs_epi32((__m256i)a, (__m256i)b);
  const __m256i cd = _mm256_packs_epi32((__m256i)c, (__m256i)d);
  // Packing works within 128 bits: words come out as a0 b0 c0 d0 a1 b1 c1 d1, four bytes each.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order));
}

// VPMADDUBSW adds two products of an unsigned and a signed byte into 16 bits, with saturation. Codes below 16 cannot
// reach it, even four times over; 8-bit codes are made signed, and their sign is moved to the other factor:
// 2 * 128 * 127 still fits.
constexpr int kByteBias = 128;
inline U32 sign_bytes(U32 codes) { return codes ^ 0x80808080u; }

inline __m256i broadcast_four(const int8_t* from) {
  int32_t four;
  memcpy(&four, from, sizeof four);
  return _mm256_set1_epi32(four);
}

template <bool kBytes, int kRows, int kVectors>
inline void dot_unit(const U32 (&codes)[kVectors][4], const int8_t* in, int stride, I32 (&sums)[kRows][kVectors]) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      __m256i pairs[4];
#pragma GCC unroll 4
      for (int step = 0; step < 4; ++step) {
        const __m256i bytes = (__m256i)codes[v][step];
        const __m256i factors = broadcast_four(in + r * stride + 4 * step);
        pairs[step] = kBytes ? _mm256_maddubs_epi16(_mm256_abs_epi8(bytes), _mm256_sign_epi8(factors, bytes))
                             : _mm256_maddubs_epi16(bytes, factors);
      }
      if constexpr (kBytes) {
#pragma GCC unroll 4
        for (int step = 0; step < 4; ++step) sums[r][v] += (I32)_mm256_madd_epi16(pairs[step], ones);
      } else {
        pairs[0] = _mm256_add_epi16(_mm256_add_epi16(pairs[0], pairs[1]), _mm256_add_epi16(pairs[2], pairs[3]));
        sums[r][v] += (I32)_mm256_madd_epi16(pairs[0], ones);
      }
    }
  }
}

}  // namespace kvasir::KVASIR_LEVEL
