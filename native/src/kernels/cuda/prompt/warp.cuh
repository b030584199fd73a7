// What prompt attention does between products: which tokens a row sees, weights from scores, states of rows.
#pragma once

#include "kernels/cuda/prompt/instance.h"
#include "kernels/cuda/prompt/tile.cuh"

namespace kvasir::cuda {

constexpr int64_t kFar = 1 << 30;  // tokens: further than any part reaches

// A block's query rows, and which tokens of the part they see: those up to a row's newest, `reach` of them. A row
// behind the end sees nothing.
template <class Tile>
struct PromptBlock {
  int d, kv_head, split;
  int rows;       // of all blocks of the kv head
  int first_row;  // the block's
  int last;       // row that there is, counted from first_row
  int count;      // tokens of the part
  int reach;
  uint8_t* shared;
  const PromptMask* masks;  // those of the request, or null
  int masked_from;          // token of the part where they begin

  __device__ float* factors() const { return reinterpret_cast<float*>(shared + Tile::kFactorsAt); }
  __device__ int* newest() const { return reinterpret_cast<int*>(shared + Tile::kNewestAt); }

  __device__ __forceinline__ void find_newest(const PromptRequest& request, int64_t position) const {
    const int64_t first_newest = request.first_query - position;
    for (int r = threadIdx.x; r < Tile::kRows; r += Tile::kThreads) {
      const int query = (first_row + r) / request.group;
      const bool live = first_row + r < rows;
      const int64_t token = masks != nullptr && live ? masks[query].position - position : first_newest + query;
      newest()[r] = live ? static_cast<int>(min(max(token, -kFar), kFar)) : -static_cast<int>(kFar);
    }
  }

  struct Tiles {
    int begin, end;
  };
  // Those of this split.
  __device__ __forceinline__ Tiles tiles() const {
    constexpr int kTokens = Tile::kTokens;
    // Guesses stand in any order, at or after the first of them, and see any of the others.
    const int oldest = masks != nullptr ? masked_from : newest()[0];
    const int tokens = masks != nullptr ? count : min(max(newest()[last] + 1, 0), count);
    const int begin = max(oldest - reach + 1, 0) / kTokens, end = (tokens + kTokens - 1) / kTokens;
    const int all = max(end - begin, 0), splits = static_cast<int>(gridDim.z);
    return {begin + static_cast<int>(static_cast<int64_t>(all) * split / splits),
            begin + static_cast<int>(static_cast<int64_t>(all) * (split + 1) / splits)};
  }
};

// What a warp does between products. A lane (g = lane / 4, k = lane % 4) has rows g and g + 8 of each tile of 16, its
// halves, and columns 2k and 2k + 1 of each eight. Arrays are not members: what is known of scalars beside them would
// be lost to the compiler until it has unrolled all loops.
template <int D, class Tile>
class PromptWarp {
 public:
  static constexpr int kTiles = Tile::kWarpTiles, kTokens = Tile::kTokens;
  using Scores = float[kTiles][kTokens / 8][4];
  // A row's greatest score, the lane's share of its sum of weights, and its outputs.
  struct State {
    float peak[kTiles][2], sum[kTiles][2], output[kTiles][D / 8][4];
  };
  // A tile's weights as fragments of A, and what outputs so far are multiplied by.
  struct Weights {
    uint4 fragments[Tile::kWeightParts][kTiles][kTokens / 16];
    float keep[kTiles][2];
  };

  __device__ PromptWarp(const PromptRequest& request, const PromptBlock<Tile>& block)
      : request_(request),
        block_(block),
        lane_(threadIdx.x % 32),
        first_(16 * kTiles * static_cast<int>(threadIdx.x / 32)),
        idle_(first_ > block.last),
        oldest_newest_(idle_                    ? 0
                       : block.masks != nullptr ? block.masked_from - 1
                                                : block.newest()[first_]),
        newest_newest_(idle_                    ? -1
                       : block.masks != nullptr ? block.masked_from + kMostMasked - 1
                                                : block.newest()[min(first_ + 16 * kTiles - 1, block.last)]) {}

  // Whether it has no rows.
  __device__ __forceinline__ bool idle() const { return idle_; }

  // The states of its rows, or none.
  __device__ __forceinline__ void load(bool none, State& state) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_of(m, h);
        const bool known = !none && row <= block_.last;
        const float* from = known ? state_of(row) : nullptr;
        state.peak[m][h] = known ? from[0] : -INFINITY;
        state.sum[m][h] = known && lane_ % 4 == 0 ? from[1] : 0.0f;  // lanes of a row add up in the end
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          const int c = 8 * n + 2 * (lane_ % 4);
          const float2 pair = known && c < block_.d ? *reinterpret_cast<const float2*>(from + kPromptStateHead + c)
                                                    : make_float2(0.0f, 0.0f);
          state.output[m][n][2 * h] = pair.x;
          state.output[m][n][2 * h + 1] = pair.y;
        }
      }
    }
  }

  // token: the tile's first.
  __device__ __forceinline__ void make_weights(int token, Scores& score, State& state, Weights& weights) const {
    const bool cut =
        (token + kTokens > min(oldest_newest_ + 1, block_.count)) | (token <= newest_newest_ - block_.reach);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (request_.soft_cap > 0.0f) cap(m, h, score);
        if (cut) hide(token, m, h, score);
        weights.keep[m][h] = softmax(m, h, score, state);
      }
      // What a lane has of two columns of C is what it needs of A.
#pragma unroll
      for (int k = 0; k < kTokens / 16; ++k) {
#pragma unroll
        for (int w = 0; w < Tile::kWeightParts; ++w) {
          float(&a)[4] = score[m][2 * k], (&b)[4] = score[m][2 * k + 1];
          uint4& fragment = weights.fragments[w][m][k];
          if (w + 1 < Tile::kWeightParts) {
            fragment = {take_halves(a[0], a[1]), take_halves(a[2], a[3]), take_halves(b[0], b[1]),
                        take_halves(b[2], b[3])};
          } else {
            fragment = {floats_to_halves(a[0], a[1]), floats_to_halves(a[2], a[3]), floats_to_halves(b[0], b[1]),
                        floats_to_halves(b[2], b[3])};
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store(const State& state) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum = sum_over_columns(state.sum[m][h]);
        const int row = row_of(m, h);
        if (row > block_.last) continue;
        float* to = state_of(row);
        if (lane_ % 4 == 0) *reinterpret_cast<float2*>(to) = make_float2(state.peak[m][h], sum);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          const int c = 8 * n + 2 * (lane_ % 4);
          if (c >= block_.d) continue;
          *reinterpret_cast<float2*>(to + kPromptStateHead + c) =
              make_float2(state.output[m][n][2 * h], state.output[m][n][2 * h + 1]);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ int row_of(int tile, int half) const { return first_ + 16 * tile + 8 * half + lane_ / 4; }
  __device__ __forceinline__ float* state_of(int row) const {
    const int64_t heads = static_cast<int64_t>(block_.split) * request_.kv_heads + block_.kv_head;
    return request_.states + (heads * block_.rows + block_.first_row + row) * (block_.d + kPromptStateHead);
  }

  // Makes products capped scores.
  __device__ __forceinline__ void cap(int m, int h, Scores& score) const {
    const float factor = block_.factors()[row_of(m, h)], most = request_.soft_cap * kLog2E;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) score[m][n][2 * h + i] = capped(score[m][n][2 * h + i] * factor, most);
    }
  }

  // The same as hide for a guess.
  __device__ __forceinline__ void hide_by_mask(int token, int m, int h, Scores& score) const {
    const int row = row_of(m, h), row_newest = block_.newest()[row];
    const uint64_t bits = row <= block_.last ? block_.masks[(block_.first_row + row) / request_.group].bits : 0;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = token + 8 * n + 2 * (lane_ % 4) + i, guess = at - block_.masked_from;
        const bool seen = guess < 0 ? at > row_newest - block_.reach : (bits >> min(guess, kMostMasked - 1) & 1) != 0;
        float& x = score[m][n][2 * h + i];
        x = seen & (at < block_.count) ? x : -INFINITY;
      }
    }
  }

  // Scores of tokens that a row does not see. One condition, not two branches.
  __device__ __forceinline__ void hide(int token, int m, int h, Scores& score) const {
    if (block_.masks != nullptr) return hide_by_mask(token, m, h, score);
    const int row_newest = block_.newest()[row_of(m, h)], row_last = min(row_newest, block_.count - 1);
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = token + 8 * n + 2 * (lane_ % 4) + i;
        float& x = score[m][n][2 * h + i];
        x = (at > row_last) | (at <= row_newest - block_.reach) ? -INFINITY : x;
      }
    }
  }

  // Turns a row's products into weights, and returns what its outputs so far are multiplied by.
  __device__ __forceinline__ float softmax(int m, int h, Scores& score, State& state) const {
    const float factor = request_.soft_cap > 0.0f ? 1.0f : block_.factors()[row_of(m, h)];
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) most = fmaxf(most, fmaxf(score[m][n][2 * h], score[m][n][2 * h + 1]));
    most = max_over_columns(most);
    const float now = fmaxf(state.peak[m][h], most * factor), reference = finite_reference(now);
    const float keep = weight_of(state.peak[m][h], reference);
    state.peak[m][h] = now;
    const float offset = kWeightExponent - reference;
    float all = 0.0f;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = score[m][n][2 * h + i];
        x = exp2_approx(fmaf(x, factor, offset));
        all += x;
      }
    }
    state.sum[m][h] = fmaf(state.sum[m][h], keep, all);
    return keep;
  }

  const PromptRequest& request_;
  const PromptBlock<Tile> block_;
  const int lane_;
  const int first_;  // row of the block
  const bool idle_;
  const int oldest_newest_, newest_newest_;  // of its first and of its last row
};

}  // namespace kvasir::cuda
