// simd.h for AArch64. What its extensions change is in simd_neon_dots.h. Include simd.h, not this.
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
inline I32 truncate(F32 a) { return vcvtq_s32_f32(a); }
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

// Products of the first and of the second numbers side by side: they meet at the end.
struct PairSums {
  I32 low, high;
};
inline void add_pairs(PairSums& sums, I16 a, I16 b) {
  sums.low = vmlal_s16(sums.low, vget_low_s16(a), vget_low_s16(b));
  sums.high = vmlal_high_s16(sums.high, a, b);
}
inline I32 total(const PairSums& sums) { return vpaddq_s32(sums.low, sums.high); }

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

}  // namespace kvasir::KVASIR_LEVEL
