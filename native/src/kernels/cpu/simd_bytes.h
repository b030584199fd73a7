// Signed bytes as floats, for weights: load_bytes(from, out) makes 16 / kLanes vectors of 16 bytes.
#pragma once

#include "kernels/cpu/simd.h"

namespace kvasir::KVASIR_LEVEL {

#if defined(__AVX512VNNI__)
inline void load_bytes(const int8_t* from, F32 (&out)[1]) {
  out[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
#elif defined(__AVX2__)
inline void load_bytes(const int8_t* from, F32 (&out)[2]) {
  for (int v = 0; v < 2; ++v) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * v));
    out[v] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  }
}
#else
inline void load_bytes(const int8_t* from, F32 (&out)[4]) {
  const int8x16_t bytes = vld1q_s8(from);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
  out[1] = vcvtq_f32_s32(vmovl_high_s16(low));
  out[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
  out[3] = vcvtq_f32_s32(vmovl_high_s16(high));
}
#endif

}  // namespace kvasir::KVASIR_LEVEL
