// Prompt attention on Hopper: as prompt/kernel.cuh, with products of warp groups. Two groups of four warps take 64
// query rows each; four warps more copy tiles of keys and values ahead of them. While weights are made of a tile's
// scores, outputs of the tile before are summed, and the other group multiplies.
//
// Outputs are summed by tensor cores alone, which cut off where they should round: 2^-24 of a sum for each 16 tokens,
// far below what weights of float16 cost.
#pragma once

#include "kernels/cuda/primitives/wgmma.cuh"
#include "kernels/cuda/prompt/hopper/hopper.h"
#include "kernels/cuda/prompt/warp.cuh"

namespace kvasir::cuda {

// D: the head dim. Lines of shared memory are of 64 channels; what is missing of the last is never touched.
template <int D, int kQueryParts_, int kKeyParts_, int kWeightParts_, int kTokens_, int kStages_>
struct HopperTile {
  static constexpr int kQueryParts = kQueryParts_, kKeyParts = kKeyParts_, kWeightParts = kWeightParts_;
  static constexpr int kGroups = 2, kWarps = 4 * kGroups, kThreads = 32 * kWarps;  // that compute
  static constexpr int kCopyThreads = 128;
  // Of which so many copy: a piece of eight channels each, of kCopyStep tokens side by side.
  static constexpr int kOctets = D / 8, kCopyStep = kCopyThreads / kOctets / 8 * 8, kCopying = kCopyStep * kOctets;
  static constexpr int kWarpTiles = 1;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kTokens = kTokens_, kStages = kStages_;
  static constexpr int kRowBytes = 2 * ((D + 63) / 64 * 64);
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
      barrier_init(keys_there(s), Tile::kCopying);
      barrier_init(values_there(s), Tile::kCopying);
      barrier_init(keys_free(s), Tile::kWarps);
      barrier_init(values_free(s), Tile::kWarps);
    }
    fence_barrier_inits();
  }
};

// The warps that copy. Rows of a head follow on each other: what threads side by side copy does, too.
template <int D, class Tile>
__device__ __forceinline__ void copy_tiles(const PromptRows& part, int64_t head, int begin, int end,
                                           const HopperStages<Tile>& stages) {
  constexpr int kStep = Tile::kCopyStep, kCopies = Tile::kTokens / kStep;
  static_assert(kStep % 8 == 0 && Tile::kTokens % kStep == 0, "a thread's pieces of all its tokens stand alike");
  const int thread = threadIdx.x - Tile::kThreads, octet = thread % Tile::kOctets, first = thread / Tile::kOctets;
  if (thread >= Tile::kCopying) return;
  const uint32_t place = Tile::token_byte(first, octet);
  const auto copy = [&](uint32_t to, const uint16_t* rows, int tile) {
    const int count = static_cast<int>(part.tokens) - tile * Tile::kTokens - first;
    const uint16_t* from = rows + head + (int64_t{tile} * Tile::kTokens + first) * D + 8 * octet;
    if (count + first >= Tile::kTokens) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) copy16(to + place + i * (kStep * 128), from + i * (kStep * D));
      return;
    }
#pragma unroll 4
    for (int i = 0; i < kCopies; ++i) {
      copy_or_clear(to + place + i * (kStep * 128), from, i * kStep < count);
      from += kStep * D;
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
      add_products(outputs, weights[w][0][k], tile_descriptor(values + k * 16 * 128, Tile::kTokens * 128));
    }
  }
}

template <int D, class Tile>
__global__ void __launch_bounds__(Tile::kThreads + Tile::kCopyThreads, 1)
    hopper_prompt_kernel(const __grid_constant__ PromptLaunch launch) {
  extern __shared__ __align__(1024) uint8_t shared[];
  using Warp = PromptWarp<D, Tile>;
  const bool computes = threadIdx.x < Tile::kThreads;
  const PromptBlock<Tile> block(launch, D, shared);
  const HopperStages<Tile> stages = {shared_address(shared)};
  if (threadIdx.x == 0) stages.init();
  if (computes) {
    load_queries<Tile>(launch, block.prompt(), block.kv_head, block.place().first_row, shared, block.factors());
    block.find_newest();
    fence_shared_operands();
  }
  __syncthreads();
  const auto tiles = block.tiles();
  if (!computes) {
    const PromptRows& part = block.prompt().rows;
    const int64_t head = block.kv_head * part.stride * D;
    leave_registers<24>();
    return copy_tiles<D, Tile>(part, head, tiles.begin, tiles.end, stages);
  }
  take_registers<240>();
  const Warp warp(block, block.place().last);
  typename Warp::State state;
  warp.load(state);
  const uint32_t queries = stages.base + threadIdx.x / 128 * (64 * 128);
  RingPosition at;
  typename Warp::Scores score;
  const auto await_keys = [&] {
    barrier_wait(stages.keys_there(at.slot), at.parity);
    fence_shared_operands();
  };
  const auto await_values = [&] {
    barrier_wait(stages.values_there(at.slot), at.parity);
    fence_shared_operands();
  };
  const bool leads = threadIdx.x % 32 == 0;  // a warp
  if (tiles.begin < tiles.end) {
    typename Warp::Keep keep = {};
    typename Warp::Weights weights;
    // Whether outputs so far must be multiplied: peaks seldom rise after the first tiles. Sums are never negative;
    // asking makes the compiler weigh before it waits for outputs.
    const auto rises = [&] {
      const bool own = keep[0][0] != 1.0f || keep[0][1] != 1.0f;
      return __any_sync(0xffffffffu, own || state.sum[0][0] < 0.0f || state.sum[0][1] < 0.0f);
    };
    const auto multiply_outputs = [&] {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state.output[0][n][i] *= keep[0][i / 2];
      }
    };
    await_keys();
    fence_products();
    multiply_keys<D, Tile>(queries, stages.keys(at.slot, 0), score[0]);
    commit_products();
    wait_products<0>();
    fence_sums(score[0]);
    if (leads) barrier_arrive(stages.keys_free(at.slot));
    warp.weigh(tiles.begin * Tile::kTokens, score, state, keep);
    multiply_outputs();
    Warp::pack(score, weights);
    // A tile's weights are made while the outputs of the one before are summed.
    for (int tile = tiles.begin + 1; tile < tiles.end; ++tile) {
      const int before = at.slot;
      await_values();
      at.advance(Tile::kStages);
      await_keys();
      fence_products();
      multiply_keys<D, Tile>(queries, stages.keys(at.slot, 0), score[0]);
      commit_products();
      add_values<D, Tile>(weights, stages.values(before), state.output[0]);
      commit_products();
      wait_products<1>();
      fence_sums(score[0]);
      if (leads) barrier_arrive(stages.keys_free(at.slot));
      warp.weigh(tile * Tile::kTokens, score, state, keep);
      if (rises()) {
        wait_products<0>();
        fence_sums(state.output[0]);
        multiply_outputs();
      } else {
        wait_products<0>();
        fence_sums(state.output[0]);
      }
      if (leads) barrier_arrive(stages.values_free(before));
      Warp::pack(score, weights);
    }
    await_values();
    fence_products();
    add_values<D, Tile>(weights, stages.values(at.slot), state.output[0]);
    commit_products();
    wait_products<0>();
    fence_sums(state.output[0]);
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
PromptKernel hopper_prompt(const PromptRequest& request) {
  const bool wide = request.type == ElementType::kFloat32;
  if (request.precision == PromptPrecision::kFast) return hopper_kernel_with<D, 1, 1, 1, 128, 3>();
  return wide ? hopper_kernel_with<D, 2, 2, 1, 64, 3>() : hopper_kernel_with<D, 1, 2, 1, 128, 2>();
}

}  // namespace kvasir::cuda
