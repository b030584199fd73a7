// Prompt attention with tensor cores. A block takes some query rows of a kv head (all its query heads, token after
// token) and walks over tiles of tokens; a warp takes 16 or 32 of the rows, and has their scores, weights and outputs
// in registers. Loads of keys run while weights and outputs are computed, loads of values while scores are.
//
// Products of a tile are summed by tensor cores and added to outputs by ordinary ones, because tensor cores cut off
// where they should round: over thousands of tiles that would add up.
#pragma once

#include "kernels/cuda/primitives/shared_memory.h"
#include "kernels/cuda/prompt/warp.cuh"

namespace kvasir::cuda {

// The copies of tiles, as all warps do them: when keys are there, those of values begin; when scores are, those of the
// next keys.
template <class Tile>
struct PromptCopies {
  const PromptBlock<Tile>& block;
  int64_t head;  // where its rows begin
  int d, end;
  uint32_t base;  // of shared memory

  __device__ __forceinline__ void begin(int tile) const {
    if (tile < end) copy_keys(tile);
    commit_copies();
  }
  __device__ __forceinline__ void await_keys(int tile) const {
    wait_copies<0>();
    block_barrier();
    copy(Tile::kValuesAt, rows().values, tile);
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
  __device__ __forceinline__ const PromptRows& rows() const { return block.prompt().rows; }
  __device__ __forceinline__ void copy(int to, const uint16_t* from, int tile) const {
    copy_rows<Tile>(base + to, from + (head + int64_t{tile} * Tile::kTokens * d), block.count - tile * Tile::kTokens,
                    d);
  }
  __device__ __forceinline__ void copy_keys(int tile) const {
    copy(Tile::kKeysAt, rows().keys, tile);
    if constexpr (Tile::kKeyParts == 2) copy(Tile::kKeysAt + Tile::kTokenBytes, rows().keys_low, tile);
  }
};

// The products of a warp, with fragments from shared memory.
template <int D, class Tile>
class PromptProducts {
 public:
  using Warp = PromptWarp<D, Tile>;
  static constexpr int kTiles = Tile::kWarpTiles, kTokens = Tile::kTokens;

  __device__ explicit PromptProducts(const uint8_t* shared) {
    const uint32_t base = shared_address(shared);
    const int lane = threadIdx.x % 32, first = 16 * kTiles * static_cast<int>(threadIdx.x / 32);
    query_at_ = base + Tile::byte_of(first + lane % 16, lane / 16);
    key_at_ = base + Tile::kKeysAt + Tile::byte_of(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    value_at_ = base + Tile::kValuesAt + Tile::byte_of(lane % 16, lane / 16);
  }

  // Adds the products of queries and keys.
  __device__ __forceinline__ void multiply_keys(typename Warp::Scores& score) const {
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

  __device__ __forceinline__ void add_values(const typename Warp::Weights& weights, const typename Warp::Keep& keep,
                                             typename Warp::State& state) const {
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
            mma_halves(added[m][0], weights[w][m][k], value.x, value.y);
            mma_halves(added[m][1], weights[w][m][k], value.z, value.w);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          state.output[m][n][i] = fmaf(state.output[m][n][i], keep[m][i / 2], added[m][0][i]);
          state.output[m][n + 1][i] = fmaf(state.output[m][n + 1][i], keep[m][i / 2], added[m][1][i]);
        }
      }
    }
  }

 private:
  uint32_t query_at_, key_at_, value_at_;  // where ldmatrix finds the lane's rows and octets of first fragments
};

template <int D, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2) prompt_kernel(const __grid_constant__ PromptLaunch launch) {
  extern __shared__ __align__(128) uint8_t shared[];
  using Warp = PromptWarp<D, Tile>;
  // Between 64 and 128 each head dim has an instance.
  const int d = D > 64 && D <= 128 ? D : launch.head_dim;
  const PromptBlock<Tile> block(launch, d, shared);
  const auto place = block.place();
  load_queries<Tile>(launch, block.prompt(), block.kv_head, place.first_row, shared, block.factors());
  block.find_newest();
  __syncthreads();
  const auto tiles = block.tiles();
  const Warp warp(block, place.last);
  const PromptProducts<D, Tile> products(shared);
  typename Warp::State state;
  warp.load(state);
  const int64_t head = block.kv_head * block.prompt().rows.stride * d;
  const PromptCopies<Tile> copies = {block, head, d, tiles.end, shared_address(shared)};
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
    products.multiply_keys(score);
    copies.leave_keys(tile);
    typename Warp::Weights weights;
    typename Warp::Keep keep;
    warp.weigh(tile * Tile::kTokens, score, state, keep);
    Warp::pack(score, weights);
    copies.await_values();
    products.add_values(weights, keep, state);
  }
  warp.store(state);
}

constexpr int kPromptWarps = 4;
constexpr int kLeastSharedBytes = 99 << 10;  // that a block may have on any device from compute capability 8.0 on

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
