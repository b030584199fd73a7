// simd.h for AArch64, with the dot product extension or without it. Include simd.h, not this.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace kvasir::KVASIR_LEVEL {

constexpr int kLanes = 4;
constexpr int kRegisters = 32;

using F32 = float32x4_t;
using I32 = int32x4_t;
using U32 = uint32x4_t;
using I16 = int16x8_t;
using U16 = uint16x8_t;

inline F32 splat(float a) { return vdupq_n_f32(a); }
inline I32 splat(int32_t a) { return vdupq_n_s32(a); }

inline F32 fma(F32 a, F32 b, F32 c) { return vfmaq_f32(c, a, b); }
inline F32 min(F32 a, F32 b) { return vminq_f32(a, b); }
inline F32 max(F32 a, F32 b) { return vmaxq_f32(a, b); }
inline F32 abs(F32 a) { return vabsq_f32(a); }
inline I32 min(I32 a, I32 b) { return vminq_s32(a, b); }

inline F32 reciprocal_estimate(F32 a) { return vrecpeq_f32(a); }

inline I32 round(F32 a) { return vcvtnq_s32_f32(a); }
inline F32 to_float(I32 a) { return vcvtq_f32_s32(a); }

inline F32 load_half(const uint16_t* from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }
inline void store_half(uint16_t* to, F32 a) { vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(a))); }

inline float sum(F32 a) { return vaddvq_f32(a); }
inline int32_t sum(I32 a) { return vaddvq_s32(a); }
inline float lowest(F32 a) { return vminvq_f32(a); }
inline float highest(F32 a) { return vmaxvq_f32(a); }

// Eight numbers begin at a whole byte. A number and the bits before it in its first byte fit 16 bits; a product pushes
// out what is above, a shift what is below.
template <int kBits>
inline U16 numbers(const uint8_t* from) {
  uint8_t places[16];
  uint16_t factors[8];
  for (int i = 0; i < 8; ++i) {
    places[2 * i] = static_cast<uint8_t>(i * kBits / 8);
    places[2 * i + 1] = static_cast<uint8_t>(i * kBits / 8 + 1);
    factors[i] = static_cast<uint16_t>(1 << (16 - kBits - i * kBits % 8));
  }
  const uint16x8_t words = vreinterpretq_u16_u8(vqtbl1q_u8(vld1q_u8(from), vld1q_u8(places)));
  return vshrq_n_u16(vmulq_u16(words, vld1q_u16(factors)), 16 - kBits);
}

inline I32 add_first(I32 sums, I16 pairs) {
  return vsraq_n_s32(sums, vshlq_n_s32(vreinterpretq_s32_s16(pairs), 16), 16);
}
inline I32 add_second(I32 sums, I16 pairs) { return vsraq_n_s32(sums, vreinterpretq_s32_s16(pairs), 16); }
inline I32 subtract_second(I32 sums, I16 pairs) {
  return vsubq_s32(sums, vshrq_n_s32(vreinterpretq_s32_s16(pairs), 16));
}

inline F32 sums_by_fours(F32 a, F32 b, F32 c, F32 d) { return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)); }
inline void store_fours(float* out, F32 a) { vst1q_f32(out, a); }

inline void store_bytes(int8_t* out, I32 a, I32 b, I32 c, I32 d) {
  const int16x8_t ab = vqmovn_high_s32(vqmovn_s32(a), b);
  const int16x8_t cd = vqmovn_high_s32(vqmovn_s32(c), d);
  vst1q_s8(out, vqmovn_high_s16(vqmovn_s16(ab), cd));
}

// Bytes are multiplied as signed ones: codes below 128 are what they are, 8-bit codes need a bias.
constexpr int kByteBias = 128;
inline U32 sign_bytes(U32 codes) { return veorq_u32(codes, vdupq_n_u32(0x80808080u)); }

#if defined(__ARM_FEATURE_DOTPROD)
template <bool kBytes, int kRows, int kVectors>
inline void dot_unit(const U32 (&codes)[kVectors][4], const int8_t* in, int stride, I32 (&sums)[kRows][kVectors]) {
  for (int r = 0; r < kRows; ++r) {
    const int8x16_t factors = vld1q_s8(in + r * stride);
    for (int v = 0; v < kVectors; ++v) {
      I32 sum = vdotq_laneq_s32(sums[r][v], vreinterpretq_s8_u32(codes[v][0]), factors, 0);
      sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u32(codes[v][1]), factors, 1);
      sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u32(codes[v][2]), factors, 2);
      sums[r][v] = vdotq_laneq_s32(sum, vreinterpretq_s8_u32(codes[v][3]), factors, 3);
    }
  }
}
#else
// The products of two registers of bytes as 16-bit numbers, half a register each: two lanes of four.
struct Products {
  int16x8_t low, high;
};

inline Products multiply_bytes(int8x16_t a, int8x16_t b) {
  return {vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)};
}
inline Products multiply_add_bytes(Products sums, int8x16_t a, int8x16_t b) {
  return {vmlal_s8(sums.low, vget_low_s8(a), vget_low_s8(b)), vmlal_high_s8(sums.high, a, b)};
}

// Four lanes of four bytes with 16 factors, added over the lane: with sdot four instructions, here ten, or fourteen for
// 8-bit codes. Factors are -127..127. Sixteen bits hold eight products with codes below 16 (8 * 15 * 127), so steps and
// then neighbours are added in 16 bits; of 8-bit codes they hold two (2 * 128 * 127).
template <bool kBytes>
inline I32 add_dots(I32 sums, const U32 (&codes)[4], const int8x16_t (&factors)[4]) {
  const auto bytes = [&](int step) { return vreinterpretq_s8_u32(codes[step]); };
  Products first = multiply_add_bytes(multiply_bytes(bytes(0), factors[0]), bytes(1), factors[1]);
  if constexpr (kBytes) {
    const Products second = multiply_add_bytes(multiply_bytes(bytes(2), factors[2]), bytes(3), factors[3]);
    const int32x4_t low = vpadalq_s16(vpaddlq_s16(first.low), second.low);
    const int32x4_t high = vpadalq_s16(vpaddlq_s16(first.high), second.high);
    return vaddq_s32(sums, vpaddq_s32(low, high));
  } else {
    first = multiply_add_bytes(multiply_add_bytes(first, bytes(2), factors[2]), bytes(3), factors[3]);
    return vpadalq_s16(sums, vpaddq_s16(first.low, first.high));
  }
}

template <bool kBytes, int kRows, int kVectors>
inline void dot_unit(const U32 (&codes)[kVectors][4], const int8_t* in, int stride, I32 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const int32x4_t row = vreinterpretq_s32_s8(vld1q_s8(in + r * stride));
    const int8x16_t factors[4] = {
        vreinterpretq_s8_s32(vdupq_laneq_s32(row, 0)), vreinterpretq_s8_s32(vdupq_laneq_s32(row, 1)),
        vreinterpretq_s8_s32(vdupq_laneq_s32(row, 2)), vreinterpretq_s8_s32(vdupq_laneq_s32(row, 3))};
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = add_dots<kBytes>(sums[r][v], codes[v], factors);
  }
}
#endif

}  // namespace kvasir::KVASIR_LEVEL
