// Prompt attention on Hopper: as prompt/kernel.cuh, with products of warp groups. Two groups of four warps take 64
// query rows each; four warps more copy tiles of keys and values ahead of them. While one group makes weights of
// scores, the other multiplies.
//
// Outputs are summed by tensor cores alone, which cut off where they should round: 2^-24 of a sum for each 16 tokens,
// far below what weights of float16 cost.
#pragma once

#include "kernels/cuda/primitives/wgmma.cuh"
#include "kernels/cuda/prompt/warp.cuh"

namespace kvasir::cuda {

template <int D, int kQueryParts_, int kKeyParts_, int kWeightParts_, int kTokens_, int kStages_>
struct HopperTile {
  static constexpr int kQueryParts = kQueryParts_, kKeyParts = kKeyParts_, kWeightParts = kWeightParts_;
  static constexpr int kGroups = 2, kWarps = 4 * kGroups, kThreads = 32 * kWarps;  // that compute
  static constexpr int kCopyThreads = 128;
  static constexpr int kWarpTiles = 1;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kTokens = kTokens_, kStages = kStages_;
  static constexpr int kRowBytes = 2 * D;
  // Shared memory: queries, then stages of keys and values, each in blocks of 64 channels; for each row a factor and
  // the newest token that it sees; barriers.
  static constexpr int kQueryBytes = kRows * kRowBytes, kTokenBytes = kTokens * kRowBytes;
  static constexpr int kStageBytes = (kKeyParts + 1) * kTokenBytes;
  static constexpr int kStagesAt = kQueryParts * kQueryBytes;
  static constexpr int kFactorsAt = kStagesAt + kStages * kStageBytes;
  static constexpr int kNewestAt = kFactorsAt + static_cast<int>(sizeof(float)) * kRows;
  static constexpr int kBarriersAt = kNewestAt + static_cast<int>(sizeof(int)) * kRows;
  static constexpr int kBytes = kBarriersAt + 4 * 8 * kStages;
  static_assert(kTokenBytes % 1024 == 0 && kQueryBytes % 1024 == 0, "where tiles may begin");

  // Where eight channels of a query row, or of a token, are.
  static __device__ __forceinline__ uint32_t byte_of(int row, int octet) {
    return octet / 8 * (kRows * 128) + swizzle_128(row, octet % 8);
  }
  static __device__ __forceinline__ uint32_t token_byte(int token, int octet) {
    return octet / 8 * (kTokens * 128) + swizzle_128(token, octet % 8);
  }
};

// Barriers of a stage, by address.
template <class Tile>
struct HopperStages {
  uint32_t base;  // of shared memory

  __device__ uint32_t keys_there(int stage) const { return base + Tile::kBarriersAt + 32 * stage; }
  __device__ uint32_t values_there(int stage) const { return keys_there(stage) + 8; }
  // Keys are read a tile before values are.
  __device__ uint32_t keys_free(int stage) const { return keys_there(stage) + 16; }
  __device__ uint32_t values_free(int stage) const { return keys_there(stage) + 24; }
  __device__ uint32_t keys(int stage, int part) const {
    return base + Tile::kStagesAt + stage * Tile::kStageBytes + part * Tile::kTokenBytes;
  }
  __device__ uint32_t values(int stage) const { return keys(stage, Tile::kKeyParts); }
  __device__ void init() const {
    for (int s = 0; s < Tile::kStages; ++s) {
      barrier_init(keys_there(s), Tile::kCopyThreads);
      barrier_init(values_there(s), Tile::kCopyThreads);
      barrier_init(keys_free(s), Tile::kWarps);
      barrier_init(values_free(s), Tile::kWarps);
    }
    fence_barrier_inits();
  }
};

// The warps that copy.
template <class Tile>
__device__ __forceinline__ void copy_tiles(const PromptRows& part, int64_t head, int d, int begin, int end,
                                           const HopperStages<Tile>& stages) {
  constexpr int kOctets = Tile::kRowBytes / 16, kStep = Tile::kCopyThreads / kOctets;  // tokens
  const int thread = threadIdx.x - Tile::kThreads, octet = thread % kOctets, first = thread / kOctets;
  static_assert(kStep % 8 == 0, "a thread's pieces of all its tokens stand alike");
  const uint32_t place = Tile::token_byte(first, octet);
  const bool channels = 8 * octet < d;
  const auto copy = [&](uint32_t to, const uint16_t* rows, int tile) {
    const int count = static_cast<int>(part.tokens) - tile * Tile::kTokens - first;
    const uint16_t* from = rows + head + (int64_t{tile} * Tile::kTokens + first) * d + 8 * octet;
    if (count + first >= Tile::kTokens && d == Tile::kRowBytes / 2) {
#pragma unroll
      for (int i = 0; i < Tile::kTokens / kStep; ++i) {
        copy16(to + place + i * (kStep * 128), from + i * (kStep * Tile::kRowBytes / 2));
      }
      return;
    }
#pragma unroll 4
    for (int i = 0; i < Tile::kTokens / kStep; ++i) {
      copy_or_clear(to + place + i * (kStep * 128), from, i * kStep < count && channels);
      from += kStep * d;
    }
  };
  RingPosition at;
  for (int tile = begin; tile < end; ++tile) {
    barrier_wait(stages.keys_free(at.slot), at.parity ^ 1);  // the phase before the first counts as complete
    copy(stages.keys(at.slot, 0), part.keys, tile);
    if constexpr (Tile::kKeyParts == 2) copy(stages.keys(at.slot, 1), part.keys_low, tile);
    barrier_arrive_after_copies(stages.keys_there(at.slot));
    barrier_wait(stages.values_free(at.slot), at.parity ^ 1);
    copy(stages.values(at.slot), part.values, tile);
    barrier_arrive_after_copies(stages.values_there(at.slot));
    at.advance(Tile::kStages);
  }
  wait_all_copies();  // a thread must not leave before
}

// scores = queries * keys. Small times small is left out.
template <int D, class Tile>
__device__ __forceinline__ void multiply_keys(uint32_t queries, uint32_t keys, float (&scores)[Tile::kTokens / 8][4]) {
#pragma unroll
  for (int p = 0; p < Tile::kKeyParts; ++p) {
#pragma unroll
    for (int q = 0; q < (p == 0 ? Tile::kQueryParts : 1); ++q) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        const uint32_t a = queries + q * Tile::kQueryBytes + k / 4 * (Tile::kRows * 128) + k % 4 * 32;
        const uint32_t b = keys + p * Tile::kTokenBytes + k / 4 * (Tile::kTokens * 128) + k % 4 * 32;
        if (p > 0 || q > 0 || k > 0) {
          add_tiles(scores, tile_descriptor(a), tile_descriptor(b));
        } else {
          multiply_tiles(scores, tile_descriptor(a), tile_descriptor(b));
        }
      }
    }
  }
}

template <int D, class Tile>
__device__ __forceinline__ void add_values(const typename PromptWarp<D, Tile>::Weights& weights, uint32_t values,
                                           float (&outputs)[D / 8][4]) {
#pragma unroll
  for (int w = 0; w < Tile::kWeightParts; ++w) {
#pragma unroll
    for (int k = 0; k < Tile::kTokens / 16; ++k) {
      add_products(outputs, weights.fragments[w][0][k], tile_descriptor(values + k * 16 * 128, Tile::kTokens * 128));
    }
  }
}

template <int D, class Tile>
__global__ void __launch_bounds__(Tile::kThreads + Tile::kCopyThreads, 1)
    hopper_prompt_kernel(const __grid_constant__ PromptRequest request, const __grid_constant__ PromptRows part,
                         const int rows, const bool first) {
  extern __shared__ __align__(1024) uint8_t shared[];
  using Warp = PromptWarp<D, Tile>;
  const bool computes = threadIdx.x < Tile::kThreads;
  const int d = request.head_dim, kv_head = blockIdx.y;
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::kRows;
  const int reach = request.sliding_window > 0 ? static_cast<int>(min(request.sliding_window, kFar)) : kFar;
  const int split = blockIdx.z, last = min(Tile::kRows, rows - first_row) - 1, count = static_cast<int>(part.tokens);
  const auto masked_from = static_cast<int>(min(max(request.masked_from - part.position, -kFar), kFar));
  const PromptBlock<Tile> block = {d,     kv_head, split,  rows,          first_row,  last,
                                   count, reach,   shared, request.masks, masked_from};
  const HopperStages<Tile> stages = {shared_address(shared)};
  if (threadIdx.x == 0) stages.init();
  if (computes) {
    load_queries<Tile>(request, kv_head, first_row, rows, shared, block.factors());
    block.find_newest(request, part.position);
    fence_shared_operands();
  }
  __syncthreads();
  const auto tiles = block.tiles();
  const int64_t head = kv_head * part.stride * d;
  if (!computes) {
    leave_registers<56>();
    return copy_tiles<Tile>(part, head, d, tiles.begin, tiles.end, stages);
  }
  take_registers<224>();
  const Warp warp(request, block);
  typename Warp::State state;
  warp.load(first, state);
  const uint32_t queries = stages.base + threadIdx.x / 128 * (64 * 128);
  RingPosition at;
  typename Warp::Scores score;
  const auto await_keys = [&] {
    barrier_wait(stages.keys_there(at.slot), at.parity);
    fence_shared_operands();
  };
  const bool leads = threadIdx.x % 32 == 0;  // a warp
  if (tiles.begin < tiles.end) {
    await_keys();
    fence_products();
    multiply_keys<D, Tile>(queries, stages.keys(at.slot, 0), score[0]);
    commit_products();
    wait_products<0>();
    fence_sums(score[0]);
    if (leads) barrier_arrive(stages.keys_free(at.slot));
  }
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    typename Warp::Weights weights;
    warp.make_weights(tile * Tile::kTokens, score, state, weights);
    // Peaks seldom rise after the first tiles.
    if (__any_sync(0xffffffffu, weights.keep[0][0] != 1.0f || weights.keep[0][1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state.output[0][n][i] *= weights.keep[0][i / 2];
      }
    }
    const int stage = at.slot;
    barrier_wait(stages.values_there(stage), at.parity);
    fence_shared_operands();
    at.advance(Tile::kStages);
    const bool more = tile + 1 < tiles.end;
    if (more) await_keys();
    fence_products();
    add_values<D, Tile>(weights, stages.values(stage), state.output[0]);
    if (more) multiply_keys<D, Tile>(queries, stages.keys(at.slot, 0), score[0]);
    commit_products();
    wait_products<0>();
    fence_sums(state.output[0]);
    fence_sums(score[0]);
    if (leads) {
      barrier_arrive(stages.values_free(stage));
      if (more) barrier_arrive(stages.keys_free(at.slot));
    }
  }
  if (!warp.idle()) warp.store(state);
}

template <int D, int kQueryParts, int kKeyParts, int kWeightParts, int kTokens, int kStages>
PromptKernel hopper_kernel_with() {
  using Tile = HopperTile<D, kQueryParts, kKeyParts, kWeightParts, kTokens, kStages>;
  static_assert(Tile::kBytes <= 227 << 10);
  return {hopper_prompt_kernel<D, Tile>, Tile::kRows, Tile::kThreads + Tile::kCopyThreads, Tile::kBytes};
}

template <int D>
PromptKernel hopper_kernel_for(const PromptRequest& request) {
  const bool wide = request.type == ElementType::kFloat32;
  if (request.precision == PromptPrecision::kFast) return hopper_kernel_with<D, 1, 1, 1, 128, 3>();
  return wide ? hopper_kernel_with<D, 2, 2, 1, 64, 3>() : hopper_kernel_with<D, 1, 2, 1, 128, 2>();
}

}  // namespace kvasir::cuda
