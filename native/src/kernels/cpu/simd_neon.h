// simd.h for AArch64 with the dot product extension. Include simd.h, not this.
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

inline void store_sums(float* out, F32 a, F32 b, F32 c, F32 d) {
  vst1q_f32(out, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

inline void store_bytes(int8_t* out, I32 a, I32 b, I32 c, I32 d) {
  const int16x8_t ab = vqmovn_high_s32(vqmovn_s32(a), b);
  const int16x8_t cd = vqmovn_high_s32(vqmovn_s32(c), d);
  vst1q_s8(out, vqmovn_high_s16(vqmovn_s16(ab), cd));
}

// SDOT multiplies signed bytes: codes below 128 are what they are, 8-bit codes need a bias.
constexpr int kByteBias = 128;
inline U32 sign_bytes(U32 codes) { return veorq_u32(codes, vdupq_n_u32(0x80808080u)); }

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

}  // namespace kvasir::KVASIR_LEVEL
