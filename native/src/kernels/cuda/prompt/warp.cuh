// What prompt attention does between products: which tokens a row sees, weights from scores, states of rows.
#pragma once

#include "kernels/cuda/prompt/tile.cuh"

namespace kvasir::cuda {

// A block's query rows, and which tokens of the part they see: those up to a row's newest, `reach` of them. A row
// behind the end sees nothing.
template <class Tile>
struct PromptBlock {
  const PromptLaunch& launch;
  int index;  // of the prompt
  int d, kv_head;
  int count;  // tokens of the part
  int reach;
  uint8_t* shared;

  __device__ PromptBlock(const PromptLaunch& parameters, int head_dim, uint8_t* memory)
      : launch(parameters),
        index(parameters.prompt_of(static_cast<int>(blockIdx.x))),
        d(head_dim),
        kv_head(blockIdx.y),
        count(static_cast<int>(prompt().rows.tokens)),
        reach(parameters.reach),
        shared(memory) {}

  // Parameters are near, and registers few in loops: each use reads anew, and finds anew what is seldom needed.
  __device__ __forceinline__ const LaunchedPrompt& prompt() const {
    int at = index;
    asm volatile("" : "+r"(at));
    return launch.prompts[at];
  }
  struct Place {
    int split;
    int first_row;  // the block's
    int last;       // row that there is, counted from first_row
  };
  __device__ __forceinline__ Place place() const {
    const LaunchedPrompt& of = prompt();
    const int block = static_cast<int>(blockIdx.x) - of.first_block;
    // The last rows see most: they begin.
    const int tiles = (of.row_count + Tile::kRows - 1) / Tile::kRows;
    const int first_row = (tiles - 1 - block % tiles) * Tile::kRows;
    return {block / tiles, first_row, min(Tile::kRows, of.row_count - first_row) - 1};
  }
  __device__ float* factors() const { return reinterpret_cast<float*>(shared + Tile::kFactorsAt); }
  __device__ int* newest() const { return reinterpret_cast<int*>(shared + Tile::kNewestAt); }

  __device__ __forceinline__ void find_newest() const {
    const LaunchedPrompt& of = prompt();
    const Place at = place();
    for (int r = threadIdx.x; r < Tile::kRows; r += Tile::kThreads) {
      const int query = (at.first_row + r) / launch.group;
      int token = -kFar;
      if (r <= at.last) {
        token = of.newest + query;
        if (of.masks != nullptr) {
          const int64_t from_part = of.masks[query].position - of.rows.position;
          token = static_cast<int>(min(max(from_part, int64_t{-kFar}), int64_t{kFar}));
        }
      }
      newest()[r] = token;
    }
  }

  struct Tiles {
    int begin, end;
  };
  // Those of this split.
  __device__ __forceinline__ Tiles tiles() const {
    constexpr int kTokens = Tile::kTokens;
    // Guesses stand in any order, at or after the first of them, and see any of the others.
    const LaunchedPrompt& of = prompt();
    const Place at = place();
    const bool masked = of.masks != nullptr;
    const int oldest = masked ? of.masked_from : newest()[0];
    const int tokens = masked ? count : min(max(newest()[at.last] + 1, 0), count);
    const int begin = max(oldest - reach + 1, 0) / kTokens, end = (tokens + kTokens - 1) / kTokens;
    const auto all = static_cast<unsigned>(max(end - begin, 0)), splits = static_cast<unsigned>(of.splits);
    const auto share = static_cast<unsigned>(at.split) * all;
    return {begin + static_cast<int>(share / splits), begin + static_cast<int>((share + all) / splits)};
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
  // A tile's weights as fragments of A.
  using Weights = uint4[Tile::kWeightParts][kTiles][kTokens / 16];
  // What outputs so far are multiplied by.
  using Keep = float[kTiles][2];

  __device__ PromptWarp(const PromptBlock<Tile>& block, int last)
      : block_(block),
        lane_(threadIdx.x % 32),
        first_(16 * kTiles * static_cast<int>(threadIdx.x / 32)),
        idle_(first_ > last),
        oldest_newest_(idle_                             ? 0
                       : block.prompt().masks != nullptr ? block.prompt().masked_from - 1
                                                         : block.newest()[first_]),
        newest_newest_(idle_                             ? -1
                       : block.prompt().masks != nullptr ? block.prompt().masked_from + kMostMasked - 1
                                                         : block.newest()[min(first_ + 16 * kTiles - 1, last)]) {}

  // Whether it has no rows.
  __device__ __forceinline__ bool idle() const { return idle_; }

  // The states of its rows, or none.
  __device__ __forceinline__ void load(State& state) const {
    const bool first = block_.prompt().first;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        state.peak[m][h] = -INFINITY;
        state.sum[m][h] = 0.0f;
      }
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (float& output : state.output[m][n]) output = 0.0f;
      }
    }
    if (first) return;
    const auto place = block_.place();
    const float* const states = states_at(place);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_of(m, h);
        if (row > place.last) continue;
        const float* from = states + row * (block_.d + kPromptStateHead);
        state.peak[m][h] = from[0];
        if (lane_ % 4 == 0) state.sum[m][h] = from[1];  // lanes of a row add up in the end
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          const int c = 8 * n + 2 * (lane_ % 4);
          if (c >= block_.d) continue;
          const float2 pair = *reinterpret_cast<const float2*>(from + kPromptStateHead + c);
          state.output[m][n][2 * h] = pair.x;
          state.output[m][n][2 * h + 1] = pair.y;
        }
      }
    }
  }

  // Scores become weights, by rows. token: the tile's first.
  __device__ __forceinline__ void weigh(int token, Scores& score, State& state, Keep& keep) const {
    const bool cut =
        (token + kTokens > min(oldest_newest_ + 1, block_.count)) | (token <= newest_newest_ - block_.reach);
    if (block_.launch.soft_cap > 0.0f) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) cap(m, h, score);
      }
    }
    if (cut) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) hide(token, m, h, score);
      }
    }
    // Rows without branches between them, so that their chains run side by side.
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) keep[m][h] = softmax(m, h, score, state);
    }
  }

  // What a lane has of two columns of C is what it needs of A.
  static __device__ __forceinline__ void pack(Scores& score, Weights& weights) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int k = 0; k < kTokens / 16; ++k) {
#pragma unroll
        for (int w = 0; w < Tile::kWeightParts; ++w) {
          float(&a)[4] = score[m][2 * k], (&b)[4] = score[m][2 * k + 1];
          uint4& fragment = weights[w][m][k];
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
    const auto place = block_.place();
    float* const states = states_at(place);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum = sum_over_columns(state.sum[m][h]);
        const int row = row_of(m, h);
        if (row > place.last) continue;
        float* to = states + row * (block_.d + kPromptStateHead);
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
  // The block's states.
  __device__ __forceinline__ float* states_at(const typename PromptBlock<Tile>::Place& place) const {
    const int64_t heads = static_cast<int64_t>(place.split) * block_.launch.kv_heads + block_.kv_head;
    return block_.prompt().states +
           (heads * block_.prompt().row_count + place.first_row) * (block_.d + kPromptStateHead);
  }

  // Makes products capped scores.
  __device__ __forceinline__ void cap(int m, int h, Scores& score) const {
    const float factor = block_.factors()[row_of(m, h)], most = block_.launch.soft_cap * kLog2E;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) score[m][n][2 * h + i] = capped(score[m][n][2 * h + i] * factor, most);
    }
  }

  // The same as hide for a guess.
  __device__ __forceinline__ void hide_by_mask(int token, int m, int h, Scores& score) const {
    const int row = row_of(m, h), row_newest = block_.newest()[row];
    const auto place = block_.place();
    const uint64_t bits =
        row <= place.last ? block_.prompt().masks[(place.first_row + row) / block_.launch.group].bits : 0;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = token + 8 * n + 2 * (lane_ % 4) + i, guess = at - block_.prompt().masked_from;
        const bool seen = guess < 0 ? at > row_newest - block_.reach : (bits >> min(guess, kMostMasked - 1) & 1) != 0;
        float& x = score[m][n][2 * h + i];
        x = seen & (at < block_.count) ? x : -INFINITY;
      }
    }
  }

  // Scores of tokens that a row does not see. One condition, not two branches.
  __device__ __forceinline__ void hide(int token, int m, int h, Scores& score) const {
    if (block_.prompt().masks != nullptr) return hide_by_mask(token, m, h, score);
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
    const float factor = block_.launch.soft_cap > 0.0f ? 1.0f : block_.factors()[row_of(m, h)];
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

  const PromptBlock<Tile> block_;
  const int lane_;
  const int first_;  // row of the block
  const bool idle_;
  const int oldest_newest_, newest_newest_;  // of its first and of its last row
};

}  // namespace kvasir::cuda
