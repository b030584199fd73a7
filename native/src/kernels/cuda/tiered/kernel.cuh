// Attention over tiered keys in one launch.
//
// A block takes a part of one sequence for four query heads of a kv head; a warp takes whole pages of it, piece by
// piece through a ring of its own (fetch.cuh), and computes on them alone (warp.cuh). Then the block
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

template <int D, int kBits, int kKeyGroup>
__global__ void __launch_bounds__(32 * kMaxTieredWarps, 1) tiered_kernel(const __grid_constant__ TieredParams params) {
  extern __shared__ __align__(128) uint8_t shared[];
  let_next_grid_start();
  wait_for_grids_before();  // nothing before this reads or writes global memory
  constexpr int kWarpBytes = kTieredWarpBytes;
  constexpr int kState = 4 * (D + 2);
  static_assert(4 * kState <= kWarpBytes, "states take the place of pieces");
  const TieredQueries<D> queries(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = blockIdx.x, head_rows = blockIdx.y, sequence_index = blockIdx.z;
  const int kv_head = head_rows / params.row_blocks, first_head = head_rows % params.row_blocks * 4;
  const int heads = min(4, params.group - first_head);
  const int64_t first_row =
      (static_cast<int64_t>(sequence_index) * params.kv_heads + kv_head) * params.group + first_head;
  const DeviceSequence& sequence = params.sequences[sequence_index];
  const int begin = static_cast<int>(static_cast<int64_t>(sequence.page_count) * split / params.splits);
  const int end = static_cast<int>(static_cast<int64_t>(sequence.page_count) * (split + 1) / params.splits);

  uint8_t* const slots = shared + tiered_slots_offset(D) + warp * kWarpBytes;
  auto* const barriers = reinterpret_cast<uint64_t*>(shared + tiered_barriers_offset(D)) + warp * kTieredSlots;
  TieredFetcher<D, kBits, kKeyGroup> fetcher(params, sequence.pages, begin + warp, end, kv_head, lane, slots, barriers);
  if (warp < 4) queries.load(params, first_row, heads, warp, lane);
  __syncthreads();

  TieredWarp<D, kBits, kKeyGroup> state(params, queries, lane);
  int hidden = begin + warp == 0 ? sequence.hidden_tokens : 0;  // of the first page
#pragma unroll 1
  for (int page = begin + warp; page < end; page += params.warps) {
    state.page(fetcher, hidden);
    hidden = 0;
  }
  take_rows<D>(sequence, kv_head, split, params.splits, warp, params.warps, state);

  if constexpr (!kBulkCopies) wait_copies<0>();
  __syncwarp();
  state.write(reinterpret_cast<float*>(slots));
  __syncthreads();
  const auto* const states = reinterpret_cast<const float*>(shared + tiered_slots_offset(D));
  const int64_t group = static_cast<int64_t>(sequence_index) * gridDim.y + head_rows;
  float* const partials = params.partials + group * params.splits * kState;
  for (int i = threadIdx.x; i < kState; i += blockDim.x) {
    partials[split * kState + i] = merged_element(states, kWarpBytes / 4, params.warps, D, i);
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
