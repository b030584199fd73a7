// Prompt attention with tensor cores. A block takes some query rows of a kv head (all its query heads, token after
// token) and walks over tiles of tokens; a warp takes 16 or 32 of the rows, and has their scores, weights and outputs
// in registers. Loads of keys run while weights and outputs are computed, loads of values while scores are.
//
// Products of a tile are summed by tensor cores and added to outputs by ordinary ones, because tensor cores cut off
// where they should round: over thousands of tiles that would add up.
#pragma once

#include "kernels/cuda/primitives/shared_memory.h"
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

// The copies of tiles, as all warps do them: when keys are there, those of values begin; when scores are, those of the
// next keys.
template <class Tile>
struct PromptCopies {
  const PromptRows& part;
  int64_t head;  // where its rows begin
  int d, count, end;
  uint32_t base;  // of shared memory

  __device__ __forceinline__ void begin(int tile) const {
    if (tile < end) copy_keys(tile);
    commit_copies();
  }
  __device__ __forceinline__ void await_keys(int tile) const {
    wait_copies<0>();
    block_barrier();
    copy(Tile::kValuesAt, part.values, tile);
    commit_copies();
  }
  __device__ __forceinline__ void leave_keys(int tile) const {
    block_barrier();
    if (tile + 1 < end) copy_keys(tile + 1);
    commit_copies();
  }
  __device__ __forceinline__ void await_values() const {
    wait_copies<1>();
    block_barrier();
  }

 private:
  __device__ __forceinline__ void copy(int to, const uint16_t* rows, int tile) const {
    copy_rows<Tile>(base + to, rows + (head + int64_t{tile} * Tile::kTokens * d), count - tile * Tile::kTokens, d);
  }
  __device__ __forceinline__ void copy_keys(int tile) const {
    copy(Tile::kKeysAt, part.keys, tile);
    if constexpr (Tile::kKeyParts == 2) copy(Tile::kKeysAt + Tile::kTokenBytes, part.keys_low, tile);
  }
};

// What a warp does. A lane (g = lane / 4, k = lane % 4) has rows g and g + 8 of each tile of 16, its halves, and
// columns 2k and 2k + 1 of each eight. Arrays are not members: what is known of scalars beside them would be lost to
// the compiler until it has unrolled all loops.
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
                                                : block.newest()[min(first_ + 16 * kTiles - 1, block.last)]) {
    const uint32_t base = shared_address(block.shared);
    query_at_ = base + Tile::byte_of(first_ + lane_ % 16, lane_ / 16);
    key_at_ = base + Tile::kKeysAt + Tile::byte_of(lane_ % 8 + lane_ / 16 * 8, lane_ / 8 % 2);
    value_at_ = base + Tile::kValuesAt + Tile::byte_of(lane_ % 16, lane_ / 16);
  }

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

  // Adds the products of queries and keys.
  __device__ __forceinline__ void multiply_keys(Scores& score) const {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint4 query[Tile::kQueryParts][kTiles];
#pragma unroll
      for (int q = 0; q < Tile::kQueryParts; ++q) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          query[q][m] = load_matrices(Tile::further(query_at_, k) + q * Tile::kQueryBytes + m * 16 * Tile::kRowBytes);
        }
      }
#pragma unroll
      for (int n = 0; n < kTokens / 8; n += 2) {
#pragma unroll
        for (int p = 0; p < Tile::kKeyParts; ++p) {
          const uint4 key = load_matrices(Tile::further(key_at_, k) + p * Tile::kTokenBytes + n * 8 * Tile::kRowBytes);
          // Small times small is left out.
#pragma unroll
          for (int q = 0; q < (p == 0 ? Tile::kQueryParts : 1); ++q) {
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
              mma_halves(score[m][n], query[q][m], key.x, key.y);
              mma_halves(score[m][n + 1], query[q][m], key.z, key.w);
            }
          }
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
          fragment.x = take_halves(a[0], a[1]);
          fragment.y = take_halves(a[2], a[3]);
          fragment.z = take_halves(b[0], b[1]);
          fragment.w = take_halves(b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void add_values(const Weights& weights, State& state) const {
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      float added[kTiles][2][4] = {};
#pragma unroll
      for (int k = 0; k < kTokens / 16; ++k) {
        const uint4 value = load_transposed_matrices(Tile::further(value_at_, n / 2) + k * 16 * Tile::kRowBytes);
#pragma unroll
        for (int w = 0; w < Tile::kWeightParts; ++w) {
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            mma_halves(added[m][0], weights.fragments[w][m][k], value.x, value.y);
            mma_halves(added[m][1], weights.fragments[w][m][k], value.z, value.w);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          state.output[m][n][i] = fmaf(state.output[m][n][i], weights.keep[m][i / 2], added[m][0][i]);
          state.output[m][n + 1][i] = fmaf(state.output[m][n + 1][i], weights.keep[m][i / 2], added[m][1][i]);
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
  uint32_t query_at_, key_at_, value_at_;    // where ldmatrix finds the lane's rows and octets of first fragments
};

template <int D, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2)
    prompt_kernel(const __grid_constant__ PromptRequest request, const __grid_constant__ PromptRows part,
                  const int rows, const bool first) {
  extern __shared__ __align__(128) uint8_t shared[];
  using Warp = PromptWarp<D, Tile>;
  const int d = request.head_dim, kv_head = blockIdx.y;
  // The last rows see most: they begin.
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::kRows;
  load_queries<Tile>(request, kv_head, first_row, rows, shared, reinterpret_cast<float*>(shared + Tile::kFactorsAt));
  const int reach = request.sliding_window > 0 ? static_cast<int>(min(request.sliding_window, kFar)) : kFar;
  const int split = blockIdx.z, last = min(Tile::kRows, rows - first_row) - 1, count = static_cast<int>(part.tokens);
  const auto masked_from = static_cast<int>(min(max(request.masked_from - part.position, -kFar), kFar));
  const PromptBlock<Tile> block = {d,     kv_head, split,  rows,          first_row,  last,
                                   count, reach,   shared, request.masks, masked_from};
  block.find_newest(request, part.position);
  __syncthreads();
  const auto tiles = block.tiles();
  const Warp warp(request, block);
  typename Warp::State state;
  warp.load(first, state);
  const int64_t head = kv_head * part.stride * d;
  const PromptCopies<Tile> copies = {part, head, d, count, tiles.end, shared_address(shared)};
  copies.begin(tiles.begin);
  if (warp.idle()) {
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      copies.await_keys(tile);
      copies.leave_keys(tile);
      copies.await_values();
    }
    return;
  }
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    copies.await_keys(tile);
    typename Warp::Scores score = {};
    warp.multiply_keys(score);
    copies.leave_keys(tile);
    typename Warp::Weights weights;
    warp.make_weights(tile * Tile::kTokens, score, state, weights);
    copies.await_values();
    warp.add_values(weights, state);
  }
  warp.store(state);
}

constexpr int kPromptWarps = 4;
constexpr int kLeastSharedBytes = 99 << 10;  // that a block may have on any device from compute capability 8.0 on

inline bool shared_memory_has(int bytes) {
  int most = 0;
  return most_shared_memory(&most) == cudaSuccess && bytes <= most;
}

template <int D, int kQueryParts, int kKeyParts, int kWeightParts>
PromptKernel prompt_kernel_with() {
  using Tile = PromptTile<D, kQueryParts, kKeyParts, kWeightParts, kPromptWarps>;
  if constexpr (Tile::kBytes > kLeastSharedBytes) {
    using Small = PromptTile<D, kQueryParts, kKeyParts, kWeightParts, kPromptWarps / 2>;
    static_assert(Small::kBytes <= kLeastSharedBytes);
    if (!shared_memory_has(Tile::kBytes)) {
      return {prompt_kernel<D, Small>, Small::kRows, Small::kThreads, Small::kBytes};
    }
  }
  return {prompt_kernel<D, Tile>, Tile::kRows, Tile::kThreads, Tile::kBytes};
}

template <int D>
PromptKernel prompt_kernel_for(const PromptRequest& request) {
  // Numbers of 16 bits need no second operand.
  const bool wide = request.type == ElementType::kFloat32;
  switch (request.precision) {
    case PromptPrecision::kFast:
      return prompt_kernel_with<D, 1, 1, 1>();
    case PromptPrecision::kExact:
      return wide ? prompt_kernel_with<D, 2, 2, 1>() : prompt_kernel_with<D, 1, 2, 1>();
    case PromptPrecision::kHalves:
      return wide ? prompt_kernel_with<D, 2, 1, 2>() : prompt_kernel_with<D, 1, 1, 2>();
    default:
      return wide ? prompt_kernel_with<D, 2, 2, 2>() : prompt_kernel_with<D, 1, 2, 2>();
  }
}

template <int D>
constexpr PromptInstance kPromptInstance = {PromptTile<D, 1, 1, 1, kPromptWarps>::kRows, prompt_kernel_for<D>};

}  // namespace kvasir::cuda
