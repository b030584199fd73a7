// Softmax weights times gains as operands of float16 products with the canonical plane of bits.
//
// The plane's word of a row of the codebook holds 32 tokens: bit j of either half is token 4 j, or 4 (j - 8) + 1 from j
// = 8 on, and in the upper half the second token after that. A lane k of a group of four rotates the word so that its
// bits 4 k .. 4 k + 3 come to bits 10 .. 13. There a single bit is a float16, 2^-14, 2^-13, 2^-11 or 2^-7: one mask
// leaves an operand for two tokens, and nothing needs to be converted. Weights make good for the different sizes.
//
// Bits 4 k + i are those of class i. The eight tokens of a class are 4 i .. 4 i + 3 of both tiles of 16: for k = 0 and
// 1 the even ones of either tile, for k = 2 and 3 the odd ones.
//
// Weights are relative to a level that each head has: 2^level stands for a weight of 1 with the greatest gain. It is
// that of the head's first page, and follows later ones only where they pass it by kSlack, so that sums hardly ever
// have to be brought to another level.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/commvq/values/part.cuh"
#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/uniform.cuh"

namespace kvasir::cuda {

constexpr int kWarpHeads = kBlockHeads / kWeightWarps;  // that a warp makes the weights of
static_assert(kWarpHeads == 4, "a head has eight lanes");

constexpr float kSlack = 8.0f;
// What a token of class i is multiplied by, as a power of two: 7, less what its bit is larger than 2^-14 by. With
// kSlack the greatest product is 2^15.
__device__ constexpr int weight_exponent(int i) { return 7 - (i == 3 ? 7 : i == 2 ? 3 : i); }

// Operands of A of both halves of a step of 32 tokens, from the words of two rows of the codebook.
__device__ __forceinline__ void bits_to_halves(uint2 rows, int k, uint4 (&operands)[2]) {
  const uint32_t first = __funnelshift_l(rows.x, rows.x, 10 - 4 * k);
  const uint32_t second = __funnelshift_l(rows.y, rows.y, 10 - 4 * k);
  operands[0] = {first & 0x04000400u, second & 0x04000400u, first & 0x08000800u, second & 0x08000800u};
  operands[1] = {first & 0x10001000u, second & 0x10001000u, first & 0x20002000u, second & 0x20002000u};
}

// One warp: weights of each page for four query heads. A lane has one head and, of a step of 32 tokens, classes 2 half
// and 2 half + 1: tokens 8 half .. 8 half + 7 of both tiles.
class HeadWeights {
 public:
  // What a lane has of a page's scores: four even and four odd tokens of one tile, then of the other.
  struct Scores {
    alignas(16) float of[4][4];

    __device__ __forceinline__ void operator+=(const Scores& more) {
#pragma unroll
      for (int i = 0; i < 16; ++i) of[i / 4][i % 4] += more.of[i / 4][i % 4];
    }
  };

  // warp: this one's number among those that make weights.
  __device__ HeadWeights(int warp, int lane)
      : half_(lane % 2),
        step_(lane / 2 % 2 + lane / 8 % 2 * 2),
        head_(kWarpHeads * warp + lane / 4 % 2 + lane / 16 * 2),
        exponents_{static_cast<float>(half_ == 0 ? weight_exponent(0) : weight_exponent(2)),
                   static_cast<float>(half_ == 0 ? weight_exponent(1) : weight_exponent(3))},
        units_{half_ == 0 ? unit(0) : unit(2), half_ == 0 ? unit(1) : unit(3)} {}

  __device__ __forceinline__ int half() const { return half_; }
  __device__ __forceinline__ int step() const { return step_; }
  __device__ __forceinline__ int head() const { return head_; }
  // Where this lane's scores begin in a page, tiles of which are `tile_stride` floats apart.
  __device__ __forceinline__ int64_t place(int64_t tile_stride, int head) const {
    return 2 * step_ * tile_stride + head * kTileSize + kTileSize / 4 * half_;
  }

  // Scores of a page, from there on: in global memory, or in shared memory.
  __device__ __forceinline__ static Scores load(const float* from, int64_t tile_stride) {
    return load_fours(from, tile_stride, [](const float4* four) { return __ldcg(four); });
  }
  __device__ __forceinline__ static Scores load_shared(const float* from, int tile_stride) {
    return load_fours(from, tile_stride, [](const float4* four) { return *four; });
  }

  // Caps scores, if cap > 0, and hides the first tokens of a page.
  __device__ __forceinline__ void limit(Scores& scores, float cap, int hidden) const {
    if (cap > 0.0f) {
#pragma unroll
      for (int i = 0; i < 16; ++i) scores.of[i / 4][i % 4] = capped(scores.of[i / 4][i % 4], cap);
    }
    if (hidden > 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int token = (2 * step_ + i / 8) * kTileSize + kTileSize / 2 * half_ + i % 4 * 2 + i / 4 % 2;
        if (token < hidden) scores.of[i / 4][i % 4] = kHidden;
      }
    }
  }

  // Gains of this lane's tokens of either tile, from those of a page.
  __device__ __forceinline__ void load_gains(const uint16_t* gains) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      gains_[t] = *reinterpret_cast<const uint4*>(gains + (2 * step_ + t) * kTileSize + kTileSize / 2 * half_);
    }
  }

  // Raises the level for scores and gains that need it. Returns what sums so far are multiplied by.
  __device__ __forceinline__ float raise_level(const Scores& scores) {
    float highest = kHidden;
#pragma unroll
    for (int i = 0; i < 16; ++i) highest = fmaxf(highest, scores.of[i / 4][i % 4]);
    __half2 most = __float2half2_rn(kLeastGain);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      for (const uint32_t two : {gains_[t].x, gains_[t].y, gains_[t].z, gains_[t].w}) {
        most = __hmax2(most, __habs2(as_halves(two)));
      }
    }
    float wanted = highest + __log2f(fmaxf(__low2float(most), __high2float(most)));
    for (const int mask : {1, 2, 8}) wanted = fmaxf(wanted, __shfl_xor_sync(0xffffffffu, wanted, mask));
    if (wanted <= level_ + kSlack) return 1.0f;
    const float keep = move_reference(level_, wanted);
    sum_ *= keep;
    return keep;
  }

  // Weights of class 2 half + c: two tokens for each k.
  __device__ __forceinline__ uint4 octet(const Scores& scores, int c) {
    const float shift = exponents_[c] - level_;
    float added = 0.0f;
    uint32_t words[4];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const float2 low = halves_to_floats(c == 0 ? gains_[t].x : gains_[t].z);
      const float2 high = halves_to_floats(c == 0 ? gains_[t].y : gains_[t].w);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float* const two = scores.of[2 * t + odd] + 2 * c;
        const float first = exp2_approx(two[0] + shift), second = exp2_approx(two[1] + shift);
        added += first + second;
        words[t + 2 * odd] = odd == 0 ? floats_to_halves(first * low.x, second * high.x)
                                      : floats_to_halves(first * low.y, second * high.y);
      }
    }
    sum_ = fmaf(added, units_[c], sum_);
    return {words[0], words[1], words[2], words[3]};
  }

  __device__ __forceinline__ float level() const { return level_; }
  // The sum of a head's weights, relative to 2^level. The same in the head's lanes.
  __device__ __forceinline__ float sum() const {
    float sum = sum_;
    for (const int mask : {1, 2, 8}) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    return sum;
  }
  // Whether a lane is the first of its head.
  __device__ __forceinline__ bool leads_head() const { return half_ == 0 && step_ == 0; }

 private:
  static constexpr float kLeastGain = 5.9604645e-8f;  // the smallest float16 that is not 0

  template <class Stride, class Load>
  __device__ __forceinline__ static Scores load_fours(const float* from, Stride tile_stride, const Load& load) {
    Scores scores;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const four = from + i / 2 * tile_stride + i % 2 * (kTileSize / 2);
      *reinterpret_cast<float4*>(scores.of[i]) = load(reinterpret_cast<const float4*>(four));
    }
    return scores;
  }

  // What makes a weight of class i one relative to the level.
  static constexpr __device__ float unit(int i) { return 1.0f / (1 << weight_exponent(i)); }

  const int half_, step_, head_;
  const float exponents_[2], units_[2];  // of the lane's classes
  uint4 gains_[2];
  float level_ = kHidden;
  float sum_ = 0.0f;
};

}  // namespace kvasir::cuda
