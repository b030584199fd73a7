// Attention over tiered keys in one launch.
//
// A block takes a part of one sequence for four query heads of a kv head; a warp takes whole pages of it, chunk by
// chunk through a ring of its own (fetch.cuh), and computes on them alone (warp.cuh). Then the block
// merges, and the last block of the heads what all have left.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/attend/row_span.cuh"
#include "kernels/cuda/layout/head_dims.h"
#include "kernels/cuda/primitives/arrivals.cuh"
#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/primitives/overlapping_launch.h"
#include "kernels/cuda/tiered/warp.cuh"

namespace kvasir::cuda {

// A block's queries in shared memory.
template <int D>
struct TieredQueries {
  float* rows;         // [D][4]: of each head, scaled to 1 at most
  __half* magnitudes;  // [D / 32][32][4]: for lane (g = lane / 4, h = lane % 4) head h, channels 4 g .. 4 g + 3 of 32
  float* scales;       // [4]: what products with them are multiplied by to be scores

  __device__ explicit TieredQueries(float* memory)
      : rows(memory), magnitudes(reinterpret_cast<__half*>(memory + 4 * D)), scales(memory + 6 * D) {}

  // A warp for each head. first_row: of the first head, of which there are `heads`.
  __device__ __forceinline__ void load(const TieredParams& params, int64_t first_row, int heads, int head,
                                       int lane) const {
    float values[D / 32], peak = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const int64_t index = (first_row + min(head, heads - 1)) * D + lane + 32 * i;
      const float value = load_unbranched(params.queries, params.type, index);
      values[i] = head < heads ? value : 0.0f;
      peak = fmaxf(peak, fabsf(values[i]));
    }
    peak = max_over_warp(peak);
    const float inverse = inverse_peak(peak);
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const float query = values[i] * inverse;
      rows[4 * (lane + 32 * i) + head] = query;
      magnitudes[(32 * i + lane / 4 * 4 + head) * 4 + lane % 4] = __float2half_ru(fabsf(query));
    }
    if (lane == 0) scales[head] = peak * params.scale;
  }
};

// Row tiles of sinks and window, which take turns among the parts of a sequence, then among warps.
template <int D, class Warp>
__device__ __forceinline__ void take_rows(const TieredParams& params, const DeviceSequence& sequence, int kv_head,
                                          int split, int warp, Warp& state) {
  int turn = split + params.splits * warp;
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    const RowSpan span = which == 0 ? sequence.sinks : sequence.window;
    const int first = span.begin / kTileSize;
    const int count = row_tiles(span);
#pragma unroll 1
    for (; turn < count; turn += params.splits * kTieredWarps) {
      const int tile = first + turn;
      state.rows(row_tile(span, tile, kv_head, RowTileLayout{D}), span.begin - tile * kTileSize,
                 span.end - tile * kTileSize);
    }
    turn -= count;
  }
}

template <int D, int kBits, int kKeyGroup>
__global__ void __launch_bounds__(32 * kTieredWarps, 1) tiered_kernel(const __grid_constant__ TieredParams params) {
  extern __shared__ __align__(128) uint8_t shared[];
  let_next_grid_start();
  wait_for_grids_before();  // nothing before this reads or writes global memory
  constexpr int kWarpBytes = kTieredSlots * tiered_slot_bytes(D, kBits);
  constexpr int kState = 4 * (D + 2);
  static_assert(4 * kState <= kWarpBytes, "states take the place of chunks");
  const TieredQueries<D> queries(reinterpret_cast<float*>(shared + kTieredWarps * kWarpBytes));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = blockIdx.x, head_rows = blockIdx.y, sequence_index = blockIdx.z;
  const int kv_head = head_rows / params.row_blocks, first_head = head_rows % params.row_blocks * 4;
  const int heads = min(4, params.group - first_head);
  const int64_t first_row =
      (static_cast<int64_t>(sequence_index) * params.kv_heads + kv_head) * params.group + first_head;
  const DeviceSequence& sequence = params.sequences[sequence_index];
  const int begin = static_cast<int>(static_cast<int64_t>(sequence.page_count) * split / params.splits);
  const int end = static_cast<int>(static_cast<int64_t>(sequence.page_count) * (split + 1) / params.splits);

  uint8_t* const slots = shared + warp * kWarpBytes;
  auto* const barriers = reinterpret_cast<uint64_t*>(shared + tiered_barriers_offset(D, kBits)) + warp * kTieredSlots;
  TieredFetcher<D, kBits, kKeyGroup> fetcher(params, sequence.pages, begin + warp, end, kv_head, lane, slots, barriers);
  if (warp < 4) queries.load(params, first_row, heads, warp, lane);
  __syncthreads();

  TieredWarp<D, kBits, kKeyGroup> state(params, queries.rows, reinterpret_cast<const uint2*>(queries.magnitudes),
                                        queries.scales[lane % 4], lane);
#pragma unroll 1
  for (int page = begin + warp; page < end; page += kTieredWarps) {
    state.page(fetcher, page == 0 ? sequence.hidden_tokens : 0);
  }
  take_rows<D>(params, sequence, kv_head, split, warp, state);

  if constexpr (!kBulkCopies) wait_copies<0>();
  __syncwarp();
  state.write(reinterpret_cast<float*>(slots));
  __syncthreads();
  const auto* const states = reinterpret_cast<const float*>(shared);
  const int64_t group = static_cast<int64_t>(sequence_index) * gridDim.y + head_rows;
  float* const partials = params.partials + group * params.splits * kState;
  for (int i = threadIdx.x; i < kState; i += blockDim.x) {
    partials[split * kState + i] = merged_element(states, kWarpBytes / 4, kTieredWarps, D, i);
  }
  __syncthreads();
  __shared__ bool last;
  if (threadIdx.x == 0) {
    last = count_arrival(params.arrivals + group) == gridDim.x - 1;
    if (last) params.arrivals[group] = 0;  // for the next launch
  }
  __syncthreads();
  if (!last) return;
  for (int i = threadIdx.x; i < heads * D; i += blockDim.x) {
    const int h = i / D, c = i % D;
    const float output = merged_element(partials, kState, params.splits, D, h * (D + 2) + c);
    RowEnd end = {1.0f, merged_element(partials, kState, params.splits, D, h * (D + 2) + D + 1)};
    if (params.ends.any()) {
      const float reference = merged_element(partials, kState, params.splits, D, h * (D + 2) + D);
      end = end_row(params.ends, params.kv_heads * params.group, first_row + h, reference, end.sum, c == 0);
    }
    const float weighted = output * end.gain;
    store_number(params.outputs, params.type, (first_row + h) * D + c, end.sum > 0.0f ? weighted / end.sum : 0.0f);
  }
}

// The kernel for the head dim and the groups of keys.
template <int kBits, int kKeyGroup>
Kernel<TieredParams> tiered_kernel_of(int head_dim) {
  return with_head_dim(head_dim,
                       [](auto d) -> Kernel<TieredParams> { return tiered_kernel<d.value, kBits, kKeyGroup>; });
}
template <int kBits>
Kernel<TieredParams> tiered_kernel_of(const TieredShape& shape) {
  return shape.key_group == 32 ? tiered_kernel_of<kBits, 32>(shape.head_dim)
                               : tiered_kernel_of<kBits, 128>(shape.head_dim);
}

}  // namespace kvasir::cuda
