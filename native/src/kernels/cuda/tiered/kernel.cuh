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
#include "kernels/cuda/primitives/merged_head.cuh"
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
  static_assert(kMaxTieredSplits <= kMaxMergedStates && kMaxTieredWarps <= kMaxMergedStates);
  const TieredQueries<D> queries(shared);
  const int warp = warp_index(), lane = threadIdx.x % 32;
  const int split = blockIdx.x, head_rows = blockIdx.y, sequence_index = blockIdx.z;
  const int kv_head = head_rows / params.row_blocks, first_head = head_rows % params.row_blocks * 4;
  const int heads = min(4, params.group - first_head);
  const int64_t first_row =
      (static_cast<int64_t>(sequence_index) * params.kv_heads + kv_head) * params.group + first_head;
  const DeviceSequence& sequence = params.sequences[sequence_index];
  const int begin = static_cast<int>(static_cast<int64_t>(sequence.page_count) * split / params.splits);
  const int end = static_cast<int>(static_cast<int64_t>(sequence.page_count) * (split + 1) / params.splits);

  const typename TieredQueries<D>::Row row(params, first_row, heads, warp, lane);  // asked for before pages are
  uint8_t* const slots = shared + tiered_slots_offset(D) + warp * kWarpBytes;
  auto* const barriers = reinterpret_cast<uint64_t*>(shared + tiered_barriers_offset(D)) + warp * kTieredSlots;
  TieredFetcher<D, kBits, kKeyGroup> fetcher(params, sequence.pages, begin + warp, end, kv_head, lane, slots, barriers);
  if (warp < 4) queries.take(params, row, warp, lane);
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
  const auto finish = [&](const float* all, int64_t stride, int count) {
    merge_heads<D, 1, D + 2>(all, stride, count, [&](int i, const auto& merged) {
      const int h = i / D, c = i % D;
      if (h >= heads) return;
      RowEnd end = {1.0f, merged.sum};
      if (params.ends.any()) {
        end = end_row(params.ends, params.kv_heads * params.group, first_row + h, merged.reference, end.sum, c == 0);
      }
      const float weighted = merged.sums[0] * end.gain;
      store_number(params.outputs, params.type, (first_row + h) * D + c, end.sum > 0.0f ? weighted / end.sum : 0.0f);
    });
  };
  if (gridDim.x == 1) return finish(states, kWarpBytes / 4, params.warps);
  const int64_t group = static_cast<int64_t>(sequence_index) * gridDim.y + head_rows;
  float* const partials = params.partials + group * params.splits * kState;
  merge_heads<D, 1, D + 2>(states, kWarpBytes / 4, params.warps, [&](int i, const auto& merged) {
    float* const head = partials + split * kState + i / D * (D + 2);
    head[i % D] = merged.sums[0];
    if (i % D == 0) {
      head[D] = merged.reference;
      head[D + 1] = merged.sum;
    }
  });
  __shared__ int last;
  if (arrives_last(params.arrivals + group, gridDim.x, &last)) finish(partials, kState, params.splits);
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
