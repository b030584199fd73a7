// Softmax weights times gains as operands of float16 products with the canonical plane of bits.
//
// The plane's word of a row of the codebook holds 32 tokens: bit j of either half is token 4 j, or 4 (j - 8) + 1 from j
// = 8 on, and in the upper half the second token after that. A lane k of a group of four rotates the word so that its
// bits 4 k .. 4 k + 3 come to bits 10 .. 13. There a single bit is a float16, 2^-14, 2^-13, 2^-11 or 2^-7: one mask
// leaves an operand for two tokens, and nothing needs to be converted. Weights make good for the different sizes.
//
// Weights are relative to a level that each head has: 2^level stands for a weight of 1 with the greatest gain. It is
// that of the head's first page, and follows later ones only where they pass it by kSlack, so that sums hardly ever
// have to be brought to another level.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/commvq/common.cuh"
#include "kernels/cuda/primitives/barrier.cuh"

namespace kvasir::cuda {

constexpr int kPageSteps = kPageTokens / 32;                    // of 32 tokens
constexpr int kHeadTiles = kBlockHeads / 8;                     // of 8 query heads
constexpr int kSteps = kPageSteps * kHeadTiles / kWeightWarps;  // that a warp makes the weights of
static_assert(kSteps == 2, "two warps share a tile of heads");

constexpr float kSlack = 8.0f;
// What a token of class i is multiplied by, as a power of two: 7, less what its bit is larger than 2^-14 by. With
// kSlack the greatest product is 2^15.
__device__ constexpr int weight_exponent(int i) { return 7 - (i == 3 ? 7 : i == 2 ? 3 : i); }
// What sums of products must be multiplied by.
constexpr float kSumUnit = 128.0f;

// Operands of A of both halves of a step of 32 tokens, from the words of two rows of the codebook.
__device__ __forceinline__ void bits_to_halves(uint2 rows, int k, uint4 (&operands)[2]) {
  const uint32_t first = __funnelshift_l(rows.x, rows.x, 10 - 4 * k);
  const uint32_t second = __funnelshift_l(rows.y, rows.y, 10 - 4 * k);
  operands[0] = {first & 0x04000400u, second & 0x04000400u, first & 0x08000800u, second & 0x08000800u};
  operands[1] = {first & 0x10001000u, second & 0x10001000u, first & 0x20002000u, second & 0x20002000u};
}

// Scores and gains of a page, in shared memory. The gap keeps lanes that read two tiles apart from each other's banks.
struct PageScores {
  float scores[kTilesPerPage][kBlockHeads * kTileSize + 4];
  uint16_t gains[kPageTokens];
};

// What warps leave for each other about a page.
struct PageWeights {
  uint4 fragments[kPageSteps][kHeadTiles][32];       // of B, by classes
  float levels[kHeadTiles][8][kPageSteps / kSteps];  // what each head would have for the steps of one warp
  float keep[kHeadTiles][8];                         // what sums so far are multiplied by
  uint32_t changed[kHeadTiles];                      // whether any of `keep` is not 1
};

// One warp: weights of kSteps steps of 32 tokens of each page for eight query heads. A lane (g = lane / 4, k = lane %
// 4) has head g and every second token of a tile: k / 2, k / 2 + 2, ... of tile k % 2 of a step. Both warps of a head
// tile keep its level.
class StepWeights {
 public:
  // warp: this one's number among those that make weights.
  __device__ StepWeights(int warp, int lane)
      : pair_(warp / kHeadTiles), head_tile_(warp % kHeadTiles), g_(lane / 4), k_(lane % 4), lane_(lane) {}

  __device__ __forceinline__ int head() const { return 8 * head_tile_ + g_; }

  // What further slices of the tables add to the scores of a page. `scores`: of the first slice, in global memory, this
  // lane's head and the page's first tile.
  __device__ __forceinline__ void add_slices(const CommVqParams& params, const float* scores) {
    const int64_t tile_stride = int64_t{params.query_heads()} * kTileSize, stride = params.tiles * tile_stride;
#pragma unroll 1
    for (int s = 1; s < params.score_slices; ++s) {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        const float* from = scores + s * stride + tile(j) * tile_stride + k_ / 2 * (kTileSize / 2);
#pragma unroll
        for (int i = 0; i < 8; ++i) rest_[j][i] = (s == 1 ? 0.0f : rest_[j][i]) + __ldcs(from + i);
      }
    }
  }

  // Fragments of B for a page, of which the first `hidden` tokens must not be seen. cap: of scores, or 0.
  __device__ __forceinline__ void make(const PageScores& input, PageWeights& page, bool sliced, float cap, int hidden) {
    load(input, sliced, cap, hidden);
    if (k_ == 0) page.levels[head_tile_][g_][pair_] = wanted_;
    sync_threads(1 + head_tile_, 32 * kPageSteps / kSteps);  // barriers 1 .. kHeadTiles
    const float2 levels = *reinterpret_cast<const float2*>(page.levels[head_tile_][g_]);
    const float keep = raise_level(fmaxf(levels.x, levels.y));
    const bool changed = __any_sync(0xffffffffu, keep != 1.0f);
    if (pair_ == 0) {
      if (k_ == 0) page.keep[head_tile_][g_] = keep;
      if (lane_ == 0) page.changed[head_tile_] = changed;
    }
#pragma unroll
    for (int j = 0; j < kSteps; ++j) page.fragments[pair_ * kSteps + j][head_tile_][lane_] = fragment(j);
  }

  __device__ __forceinline__ float level() const { return level_; }
  // The sum of the weights of this warp's steps, relative to 2^level. The same in the lanes of a head.
  __device__ __forceinline__ float sum() const { return sum_over_columns(sum_); }

 private:
  static constexpr float kLeastGain = 5.9604645e-8f;  // the smallest float16 that is not 0

  // This lane's tile of the page, for one of its steps.
  __device__ __forceinline__ int tile(int j) const { return 2 * (pair_ * kSteps + j) + k_ % 2; }

  // Scores and gains, and the level that they would like to have.
  __device__ __forceinline__ void load(const PageScores& input, bool sliced, float cap, int hidden) {
    float highest = kHidden;
    __half2 most = __float2half2_rn(kLeastGain);
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const float* const scores = input.scores[tile(j)] + head() * kTileSize + k_ / 2 * (kTileSize / 2);
      const uint16_t* const gains = input.gains + tile(j) * kTileSize;
      alignas(16) uint32_t words[8];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        reinterpret_cast<float4*>(scores_[j])[i] = reinterpret_cast<const float4*>(scores)[i];
        reinterpret_cast<uint4*>(words)[i] = reinterpret_cast<const uint4*>(gains)[i];
      }
      // This lane's half of each word: gains of two tokens.
      const uint32_t halves = k_ < 2 ? 0x5410 : 0x7632;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        gains_[j][i] = __byte_perm(words[2 * i], words[2 * i + 1], halves);
        most = __hmax2(most, __habs2(*reinterpret_cast<const __half2*>(&gains_[j][i])));
      }
      if (sliced) {
#pragma unroll
        for (int i = 0; i < 8; ++i) scores_[j][i] += rest_[j][i];
      }
      if (cap > 0.0f) {
#pragma unroll
        for (int i = 0; i < 8; ++i) scores_[j][i] = capped(scores_[j][i], cap);
      }
      if (hidden > 0) {
        const int first = tile(j) * kTileSize + k_ / 2;
#pragma unroll
        for (int i = 0; i < 8; ++i) scores_[j][i] = first + 2 * i < hidden ? kHidden : scores_[j][i];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) highest = fmaxf(highest, scores_[j][i]);
    }
    const float gain = fmaxf(__low2float(most), __high2float(most));
    wanted_ = max_over_columns(highest) + __log2f(max_over_columns(gain));
  }

  // Returns what sums so far are multiplied by.
  __device__ __forceinline__ float raise_level(float wanted) {
    if (wanted <= level_ + kSlack) return 1.0f;
    const float keep = move_reference(level_, wanted);
    sum_ *= keep;
    return keep;
  }

  __device__ __forceinline__ uint4 fragment(int j) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float shift = static_cast<float>(weight_exponent(i)) - level_;
      const float first = exp2_approx(scores_[j][2 * i] + shift), second = exp2_approx(scores_[j][2 * i + 1] + shift);
      const float2 gains = halves_to_floats(gains_[j][i]);
      sum_ = fmaf(first + second, 1.0f / (1 << weight_exponent(i)), sum_);
      words[i] = floats_to_halves(first * gains.x, second * gains.y);
    }
    return {words[0], words[1], words[2], words[3]};
  }

  const int pair_, head_tile_, g_, k_, lane_;
  alignas(16) float scores_[kSteps][8];
  uint32_t gains_[kSteps][4];
  float rest_[kSteps][8] = {};  // of scores: what further slices add
  float wanted_ = kHidden;
  float level_ = kHidden;
  float sum_ = 0.0f;
};

}  // namespace kvasir::cuda
