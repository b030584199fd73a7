// A panel: kPanelColumns columns of weights as 8-bit codes, laid out so that a vector's lanes are columns, and its
// products with rows of 8-bit activations.
//
// Lanes that are columns need no sum across a vector: four neighbours of the depth lie in a lane, the same four of a
// row are put beside all of them, and one instruction adds the products. What is here is whole numbers, so it is the
// same on every level whatever the order.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/matrix.h"
#include "kernels/weights_inl.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

constexpr int kPanelVectors = kRegisters >= 32 ? 2 : 1;
constexpr int kPanelColumns = kPanelVectors * kLanes;

struct Panel {
  Codes columns[kPanelColumns];                               // as they were unpacked
  alignas(64) uint32_t words[kCodeBlock / 4][kPanelColumns];  // four codes of a column each
  alignas(64) float scales[kCodeBlock / kCodeGroup][kPanelColumns];
  alignas(64) float minimums[kCodeBlock / kCodeGroup][kPanelColumns];
};

// The sum of the activations that a group of weights meets.
template <int kGroup>
inline float group_sum(const CodedPart& row, int at) {
  const float* sums = row.sums + at / kSumGroup;
  return kGroup == kSumGroup ? sums[0] : sums[0] + sums[1];
}

#if defined(__AVX512VNNI__)
// VPDPBUSD multiplies unsigned by signed bytes: codes of weights get 128 added, and sums begin with what that adds.
constexpr uint32_t kCodeFlip = 0x80808080u;

template <int kGroup, int kRows>
inline void group_dots(const uint32_t (*words)[kPanelColumns], const CodedPart* in, int at,
                       F32 (&dots)[kRows][kPanelVectors]) {
  __m512i sums[kRows][kPanelVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const int32_t* offsets = in[r].offsets + at / kSumGroup;
    __m512i first = _mm512_set1_epi32(offsets[0]);
    if constexpr (kGroup == 2 * kSumGroup) first = _mm512_add_epi32(first, _mm512_set1_epi32(offsets[1]));
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = first;
  }
#pragma GCC unroll 8
  for (int step = 0; step < kGroup / 4; ++step) {
    __m512i codes[kPanelVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) codes[v] = _mm512_load_si512(words[step] + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int32_t four;
      memcpy(&four, in[r].codes + at + 4 * step, sizeof four);
      const __m512i factors = _mm512_set1_epi32(four);
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], codes[v], factors);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) dots[r][v] = _mm512_cvtepi32_ps(sums[r][v]);
  }
}
#elif defined(__AVX2__)
constexpr uint32_t kCodeFlip = 0;

// VPMADDUBSW wants one side unsigned: signs of weights move to the activations. Two products are at most 2 * 128 * 127,
// which 16 bits hold.
template <int kGroup, int kRows>
inline void group_dots(const uint32_t (*words)[kPanelColumns], const CodedPart* in, int at,
                       F32 (&dots)[kRows][kPanelVectors]) {
  __m256i sums[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sums[r] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int step = 0; step < kGroup / 4; ++step) {
    const __m256i codes = _mm256_load_si256(reinterpret_cast<const __m256i*>(words[step]));
    const __m256i magnitudes = _mm256_abs_epi8(codes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int32_t four;
      memcpy(&four, in[r].codes + at + 4 * step, sizeof four);
      const __m256i factors = _mm256_sign_epi8(_mm256_set1_epi32(four), codes);
      const __m256i pairs = _mm256_maddubs_epi16(magnitudes, factors);
      sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) dots[r][0] = _mm256_cvtepi32_ps(sums[r]);
}
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr uint32_t kCodeFlip = 0;

// 1.5 * 2^23 as bits: an integer below 2^22 added to them is added to the float that they are. Conversions have one
// pipe of many cores, additions all.
constexpr int32_t kFloatBits = 0x4b400000;
constexpr float kFloatBase = 0x1.8p23f;

template <int kGroup, int kRows>
inline void group_dots(const uint32_t (*words)[kPanelColumns], const CodedPart* in, int at,
                       F32 (&dots)[kRows][kPanelVectors]) {
  static_assert(kGroup * 128 * 127 < 1 << 22, "sums fit");
  I32 sums[kRows][kPanelVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = splat(kFloatBits);
  }
#pragma GCC unroll 2
  for (int x = 0; x < kGroup; x += 16) {
    int8x16_t factors[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) factors[r] = vld1q_s8(in[r].codes + at + x);
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      const auto codes = [&](int step) { return vreinterpretq_s8_u32(vld1q_u32(words[x / 4 + step] + v * kLanes)); };
      const int8x16_t first = codes(0), second = codes(1), third = codes(2), fourth = codes(3);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r][v] = vdotq_laneq_s32(sums[r][v], first, factors[r], 0);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r][v] = vdotq_laneq_s32(sums[r][v], second, factors[r], 1);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r][v] = vdotq_laneq_s32(sums[r][v], third, factors[r], 2);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r][v] = vdotq_laneq_s32(sums[r][v], fourth, factors[r], 3);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) dots[r][v] = vreinterpretq_f32_s32(sums[r][v]) - splat(kFloatBase);
  }
}

// The same from codes that lie as they were unpacked: for so few rows, adding lanes up costs less than laying lanes
// out.
constexpr int kPlainRows = 3;

template <int kGroup, int kRows>
inline void plain_dots(const Codes* columns, const CodedPart* in, int at, F32 (&dots)[kRows][kPanelVectors]) {
  const I32 zero = splat(0), first = vsetq_lane_s32(kFloatBits, zero, 0);
#pragma GCC unroll 2
  for (int v = 0; v < kPanelVectors; ++v) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      I32 sums[4];
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        sums[c] = first;
#pragma GCC unroll 2
        for (int x = 0; x < kGroup; x += 16) {
          sums[c] = vdotq_s32(sums[c], vld1q_s8(columns[v * 4 + c].codes + at + x), vld1q_s8(in[r].codes + at + x));
        }
      }
      const I32 all = vpaddq_s32(vpaddq_s32(sums[0], sums[1]), vpaddq_s32(sums[2], sums[3]));
      dots[r][v] = vreinterpretq_f32_s32(all) - splat(kFloatBase);
    }
  }
}
#else
constexpr uint32_t kCodeFlip = 0;

// Without dot products: 16 bits hold two products (2 * 128 * 127), then pairs are added to 32 bits.
template <int kGroup, int kRows>
inline void group_dots(const uint32_t (*words)[kPanelColumns], const CodedPart* in, int at,
                       F32 (&dots)[kRows][kPanelVectors]) {
  I32 sums[kRows][kPanelVectors][2];  // of two columns each, two sums a column
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) sums[r][v][0] = sums[r][v][1] = splat(0);
  }
#pragma GCC unroll 4
  for (int step = 0; step < kGroup / 4; step += 2) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      const int8x16_t first = vreinterpretq_s8_u32(vld1q_u32(words[step] + v * kLanes));
      const int8x16_t second = vreinterpretq_s8_u32(vld1q_u32(words[step + 1] + v * kLanes));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const int8_t* factors = in[r].codes + at + 4 * step;
        int32_t four;
        memcpy(&four, factors, sizeof four);
        const int8x8_t a = vreinterpret_s8_s32(vdup_n_s32(four));
        memcpy(&four, factors + 4, sizeof four);
        const int8x8_t b = vreinterpret_s8_s32(vdup_n_s32(four));
        const int16x8_t low = vmlal_s8(vmull_s8(vget_low_s8(first), a), vget_low_s8(second), b);
        const int16x8_t high = vmlal_s8(vmull_s8(vget_high_s8(first), a), vget_high_s8(second), b);
        sums[r][v][0] = vpadalq_s16(sums[r][v][0], low);
        sums[r][v][1] = vpadalq_s16(sums[r][v][1], high);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) dots[r][v] = to_float(vpaddq_s32(sums[r][v][0], sums[r][v][1]));
  }
}
#endif

#if !defined(__ARM_FEATURE_DOTPROD)
constexpr int kPlainRows = 0;
template <int kGroup, int kRows>
void plain_dots(const Codes* columns, const CodedPart* in, int at, F32 (&dots)[kRows][kPanelVectors]);
#endif

#if defined(__AVX512VNNI__)
// interleave for as many words as are whole squares of 16 words and 16 columns; returns how many.
inline int interleave_squares(const uint8_t* columns, size_t stride, int count, uint32_t flip, uint8_t* out) {
  const __m512i flips = _mm512_set1_epi32(static_cast<int>(flip));
  int word = 0;
  for (; word + kLanes <= count; word += kLanes) {
    for (int column = 0; column < kPanelColumns; column += kLanes) {
      F32 square[kLanes];
#pragma GCC unroll 16
      for (int c = 0; c < kLanes; ++c) square[c] = _mm512_loadu_ps(columns + (column + c) * stride + 4 * word);
      turn_square(square);
#pragma GCC unroll 16
      for (int w = 0; w < kLanes; ++w) {
        uint8_t* to = out + ((word + w) * kPanelColumns + column) * sizeof(uint32_t);
        _mm512_storeu_si512(to, _mm512_castps_si512(square[w]) ^ flips);
      }
    }
  }
  return word;
}
#else
inline int interleave_squares(const uint8_t*, size_t, int, uint32_t, uint8_t*) { return 0; }
#endif

// The words of kPanelColumns columns, `stride` bytes apart, become lanes: `count` words of each, a multiple of 4.
inline void interleave(const void* columns, size_t stride, int count, uint32_t flip, void* out) {
  using Four = uint32_t __attribute__((vector_size(16)));
  const uint8_t* from = static_cast<const uint8_t*>(columns);
  uint8_t* to = static_cast<uint8_t*>(out);
  const int squares = interleave_squares(from, stride, count, flip, to);
  for (int column = 0; column < kPanelColumns; column += 4, from += 4 * stride, to += sizeof(Four)) {
    for (int word = squares; word < count; word += 4) {
      Four a, b, c, d;
      memcpy(&a, from + 4 * word, sizeof a);
      memcpy(&b, from + 4 * word + stride, sizeof b);
      memcpy(&c, from + 4 * word + 2 * stride, sizeof c);
      memcpy(&d, from + 4 * word + 3 * stride, sizeof d);
      const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5),
                 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      const Four lanes[4] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5) ^ flip,
                             __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7) ^ flip,
                             __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5) ^ flip,
                             __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7) ^ flip};
      for (int i = 0; i < 4; ++i) memcpy(to + (word + i) * 4 * kPanelColumns, lanes + i, sizeof *lanes);
    }
  }
}

}  // namespace
}  // namespace kvasir::KVASIR_LEVEL
