// simd.h's byte dot products for AArch64: by matrix products (smmla), by dot products (sdot), or by what every AArch64
// has. All are whole numbers, so the three agree to the bit. Include simd.h, not this.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace kvasir::KVASIR_LEVEL {

#if defined(__ARM_FEATURE_DOTPROD)
// The lower bytes (kByte 0) or the upper ones (1) of the pairs of 16-bit numbers in each lane, those of `second` last.
template <int kByte>
inline U32 bytes_of_pairs(I16 first, I16 second) {
  uint8_t places[16];
  for (int i = 0; i < 16; ++i) places[i] = static_cast<uint8_t>(i / 4 * 4 + i % 2 * 2 + i / 2 % 2 * 16 + kByte);
  const uint8x16x2_t both = {{vreinterpretq_u8_s16(first), vreinterpretq_u8_s16(second)}};
  return vreinterpretq_u32_u8(vqtbl2q_u8(both, vld1q_u8(places)));
}

// One row of dot_unit.
template <int kVectors>
inline void dot_row(const U32 (&codes)[kVectors][4], const int8_t* in, I32 (&sums)[kVectors]) {
  const int8x16_t factors = vld1q_s8(in);
  for (int v = 0; v < kVectors; ++v) {
    I32 sum = vdotq_laneq_s32(sums[v], vreinterpretq_s8_u32(codes[v][0]), factors, 0);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u32(codes[v][1]), factors, 1);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_u32(codes[v][2]), factors, 2);
    sums[v] = vdotq_laneq_s32(sum, vreinterpretq_s8_u32(codes[v][3]), factors, 3);
  }
}
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
// SMMLA multiplies two rows of eight bytes with two rows of eight bytes: twice the products of SDOT. For that, codes of
// two tokens and eight x must meet in a register, which takes one instruction for every 16 codes, and factors of two
// rows and eight x, which is done once for all tokens. It pays from four rows on (docs/kernels.md). A last odd row
// is left to SDOT.
constexpr int rows_in_pairs(int rows) { return rows < 4 ? 0 : rows / 2 * 2; }

// Where the unit of the first row of a pair was come the first eight x of both, where that of the second was the
// others.
inline void arrange_rows(int8_t* bytes, int rows, int stride, int begin, int end) {
  for (int r = 0; r < rows_in_pairs(rows); r += 2) {
    for (int x = begin; x < end; x += 16) {
      int8_t* first = bytes + r * stride + x;
      int8_t* second = first + stride;
      const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(first)), b = vreinterpretq_s64_s8(vld1q_s8(second));
      vst1q_s8(first, vreinterpretq_s8_s64(vzip1q_s64(a, b)));
      vst1q_s8(second, vreinterpretq_s8_s64(vzip2q_s64(a, b)));
    }
  }
}

// The sums of a pair are those of both rows for the first two tokens, and for the last two.
template <bool kBytes, int kRows, int kVectors>
inline void dot_unit(const U32 (&codes)[kVectors][4], const int8_t* in, int stride, I32 (&sums)[kRows][kVectors]) {
  constexpr int kPaired = rows_in_pairs(kRows);
#pragma GCC unroll 8
  for (int r = kPaired; r < kRows; ++r) dot_row(codes, in + r * stride, sums[r]);
  if constexpr (kPaired > 0) {
    int8x16_t early[kVectors][2], late[kVectors][2];  // the first and the last two tokens, by eight x
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        early[v][i] = vreinterpretq_s8_u32(vzip1q_u32(codes[v][2 * i], codes[v][2 * i + 1]));
        late[v][i] = vreinterpretq_s8_u32(vzip2q_u32(codes[v][2 * i], codes[v][2 * i + 1]));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kPaired; r += 2) {
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const int8x16_t factors = vld1q_s8(in + (r + i) * stride);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = vmmlaq_s32(sums[r][v], early[v][i], factors);
          sums[r + 1][v] = vmmlaq_s32(sums[r + 1][v], late[v][i], factors);
        }
      }
    }
  }
}

template <int kRows, int kVectors>
inline void settle(I32 (&sums)[kRows][kVectors]) {
  constexpr int kPaired = rows_in_pairs(kRows);
#pragma GCC unroll 4
  for (int r = 0; r < kPaired; r += 2) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const I32 early = sums[r][v], late = sums[r + 1][v];
      sums[r][v] = vuzp1q_s32(early, late);
      sums[r + 1][v] = vuzp2q_s32(early, late);
    }
  }
}
#elif defined(__ARM_FEATURE_DOTPROD)
template <bool kBytes, int kRows, int kVectors>
inline void dot_unit(const U32 (&codes)[kVectors][4], const int8_t* in, int stride, I32 (&sums)[kRows][kVectors]) {
  for (int r = 0; r < kRows; ++r) dot_row(codes, in + r * stride, sums[r]);
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
