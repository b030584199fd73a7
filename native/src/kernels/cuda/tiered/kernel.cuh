// Attention over tiered keys in one launch.
//
// A block takes a part of one sequence for four query heads of a kv head; a warp takes whole pages of it, chunk by
// chunk through a ring of its own (fetch.cuh), and computes on them alone (warp.cuh). Then the block
// merges, and the last block of the heads what all have left.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/arrivals.cuh"
#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/primitives/overlapping_launch.h"
#include "kernels/cuda/tiered/warp.cuh"

namespace kvasir::cuda {

// Merges `count` states [4][D + 2] that lie `stride` floats apart: element i of the result, maxima and sums included.
template <int D>
__device__ __forceinline__ float merged(const float* states, int64_t stride, int count, int i) {
  const int h = i / (D + 2);
  float highest = kTieredHidden, total = 0.0f;
#pragma unroll 8
  for (int s = 0; s < count; ++s) highest = fmaxf(highest, states[s * stride + h * (D + 2) + D]);
  if (i % (D + 2) == D) return highest;
#pragma unroll 8
  for (int s = 0; s < count; ++s) {
    const float* const state = states + s * stride;
    total = fmaf(state[i], exp2_approx(state[h * (D + 2) + D] - highest), total);
  }
  return total;
}

template <int D, int kBits, int kKeyGroup>
__global__ void __launch_bounds__(32 * kTieredWarps, 1) tiered_kernel(const __grid_constant__ TieredParams params) {
  extern __shared__ __align__(128) uint8_t shared[];
  let_next_grid_start();
  wait_for_grids_before();  // nothing before this reads or writes global memory
  constexpr int kWarpBytes = kTieredSlots * tiered_slot_bytes(D, kBits);
  constexpr int kState = 4 * (D + 2);
  static_assert(4 * kState <= kWarpBytes, "states take the place of chunks");
  auto* const queries = reinterpret_cast<float*>(shared + kTieredWarps * kWarpBytes);  // [D][4]
  // Float16 for each lane (g = lane / 4, h = lane % 4): those of head h and channels 4 g .. 4 g + 3 of each 32.
  auto* const magnitudes = reinterpret_cast<__half*>(queries + 4 * D);  // [D / 32][32][4]
  float* const scales = queries + 6 * D;
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
  TieredFetcher<D, kBits, kKeyGroup> fetcher(params, sequence.pages, begin + warp, end, kv_head, lane, slots);
  if (warp < 4) {  // head `warp`, scaled to 1 at most
    float values[D / 32], peak = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const int64_t index = (first_row + min(warp, heads - 1)) * D + lane + 32 * i;
      float one[1];
      load_numbers<1, 2>(params.queries, params.type, index, one);
      values[i] = warp < heads ? one[0] : 0.0f;
      peak = fmaxf(peak, fabsf(values[i]));
    }
    peak = max_over_warp(peak);
    const float inverse = peak > 1e-30f ? 1.0f / peak : 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const float query = values[i] * inverse;
      queries[4 * (lane + 32 * i) + warp] = query;
      magnitudes[(32 * i + lane / 4 * 4 + warp) * 4 + lane % 4] = __float2half_ru(fabsf(query));
    }
    if (lane == 0) scales[warp] = peak * params.scale;
  }
  __syncthreads();

  TieredWarp<D, kBits, kKeyGroup> state(params, queries, reinterpret_cast<const uint2*>(magnitudes), scales[lane % 4],
                                        lane);
#pragma unroll 1
  for (int page = begin + warp; page < end; page += kTieredWarps) {
    state.page(fetcher, page == 0 ? sequence.hidden_tokens : 0);
  }
  int turn = split + params.splits * warp;  // of all row tiles, which take turns among parts, then warps
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    const RowSpan span = which == 0 ? sequence.sinks : sequence.window;
    const int first = span.begin / kTileSize;
    const int count = span.end > span.begin ? (span.end - 1) / kTileSize - first + 1 : 0;
#pragma unroll 1
    for (; turn < count; turn += params.splits * kTieredWarps) {
      const int tile = first + turn;
      const uint8_t* data =
          span.tiles + kv_head * span.head_stride + static_cast<int64_t>(tile) * RowTileLayout{D}.bytes();
      state.rows(data, span.begin - tile * kTileSize, span.end - tile * kTileSize);
    }
    turn -= count;
  }

  wait_copies<0>();
  __syncwarp();
  state.write(reinterpret_cast<float*>(slots));
  __syncthreads();
  const auto* const states = reinterpret_cast<const float*>(shared);
  const int64_t group = static_cast<int64_t>(sequence_index) * gridDim.y + head_rows;
  float* const partials = params.partials + group * params.splits * kState;
  for (int i = threadIdx.x; i < kState; i += blockDim.x) {
    partials[split * kState + i] = merged<D>(states, kWarpBytes / 4, kTieredWarps, i);
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
    const float output = merged<D>(partials, kState, params.splits, h * (D + 2) + c);
    const float sum = merged<D>(partials, kState, params.splits, h * (D + 2) + D + 1);
    store_number(params.outputs, params.type, (first_row + h) * D + c, sum > 0.0f ? output / sum : 0.0f);
  }
}

// verb(instance) for the head dim and the groups of keys.
template <int D, int kBits, int kKeyGroup>
struct TieredInstance {
  static constexpr Kernel<TieredParams> kKernel = tiered_kernel<D, kBits, kKeyGroup>;

  static cudaError_t prepare(int shared_bytes, bool* overlaps) {
    return prepare_kernel(kKernel, shared_bytes, overlaps);
  }
  static cudaError_t launch(const TieredPlan& plan, const TieredParams& params, cudaStream_t stream) {
    const dim3 grid(params.splits, params.kv_heads * params.row_blocks, params.count);
    return launch_kernel(kKernel, {grid, 32 * kTieredWarps, plan.shared_bytes, plan.overlaps}, params, stream);
  }
};

template <int kBits, int kKeyGroup, class Verb>
cudaError_t with_tiered_instance(int head_dim, Verb verb) {
  switch (head_dim) {
    case 64:
      return verb(TieredInstance<64, kBits, kKeyGroup>());
    case 96:
      return verb(TieredInstance<96, kBits, kKeyGroup>());
    case 128:
      return verb(TieredInstance<128, kBits, kKeyGroup>());
    default:
      return verb(TieredInstance<256, kBits, kKeyGroup>());
  }
}

template <int kBits, class Verb>
cudaError_t with_tiered_instance(const TieredShape& shape, Verb verb) {
  return shape.key_group == 32 ? with_tiered_instance<kBits, 32>(shape.head_dim, verb)
                               : with_tiered_instance<kBits, 128>(shape.head_dim, verb);
}

}  // namespace kvasir::cuda
