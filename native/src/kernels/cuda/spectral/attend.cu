// Attention over spectral pages in one launch.
//
// A block takes a part of one sequence for four query heads of a kv head. Coefficients of its queries are made first,
// while pages are on their way; then a warp takes whole pages, alone. The block merges what its warps have, and the
// last block of the heads what all have left: sums of coefficients, which become channels there, once.
#include "kernels/cuda/attend/row_span.cuh"
#include "kernels/cuda/layout/head_dims.h"
#include "kernels/cuda/primitives/arrivals.cuh"
#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/spectral/warp.cuh"

namespace kvasir::cuda {
namespace {

// [D][4], scaled to 1 at most; what products with them are multiplied by to be scores goes to scales. A warp for each
// head; first_row: of the first head, of which there are `heads`.
template <int D>
__device__ __forceinline__ void load_queries(const SpectralParams& params, int64_t first_row, int heads, int head,
                                             int lane, float* rows, float* scales) {
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
  for (int i = 0; i < D / 32; ++i) rows[4 * (lane + 32 * i) + head] = values[i] * inverse;
  if (lane == 0) scales[head] = peak * params.scale;
}

// terms[c][h] = <query h, vector c>. A warp takes a vector, a lane some of its pairs of channels.
template <int D>
__device__ __forceinline__ void make_terms(const uint16_t* vectors, const float* rows, float* terms) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (vectors == nullptr) {
    for (int i = threadIdx.x; i < 4 * D; i += blockDim.x) terms[i] = rows[i];
    return;
  }
#pragma unroll 4
  for (int c = warp; c < D; c += warps) {
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < (D + 63) / 64; ++i) {
      const int channel = 64 * i + 2 * lane;
      if (D % 64 != 0 && channel >= D) continue;
      const float2 pair = halves_to_floats(__ldg(reinterpret_cast<const uint32_t*>(vectors + c * D + channel)));
      const float4 low = *reinterpret_cast<const float4*>(rows + 4 * channel);
      const float4 high = *reinterpret_cast<const float4*>(rows + 4 * channel + 4);
      sums[0] = fmaf(pair.x, low.x, fmaf(pair.y, high.x, sums[0]));
      sums[1] = fmaf(pair.x, low.y, fmaf(pair.y, high.y, sums[1]));
      sums[2] = fmaf(pair.x, low.z, fmaf(pair.y, high.z, sums[2]));
      sums[3] = fmaf(pair.x, low.w, fmaf(pair.y, high.w, sums[3]));
    }
#pragma unroll
    for (int h = 0; h < 4; ++h) sums[h] = sum_over_warp(sums[h]);
    if (lane == 0) *reinterpret_cast<float4*>(terms + 4 * c) = make_float4(sums[0], sums[1], sums[2], sums[3]);
  }
}

// The row tiles of sinks and window that a warp takes.
template <int D>
__device__ __forceinline__ void take_rows(const SpectralParams& params, const DeviceSequence& sequence, int kv_head,
                                          int split, int warp, int warps, SpectralWarp<D>& state) {
  int turn = split + params.splits * warp;
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    const RowSpan span = which == 0 ? sequence.sinks : sequence.window;
    const int first = span.begin / kTileSize, count = row_tiles(span);
#pragma unroll 1
    for (; turn < count; turn += params.splits * warps) {
      const int tile = first + turn;
      state.rows(row_tile(span, tile, kv_head, RowTileLayout{D}), span.begin - tile * kTileSize,
                 span.end - tile * kTileSize);
    }
    turn -= count;
  }
}

// States of four heads, [4][2 D + 2] each, `stride` floats apart: what each counts for beside the others. A warp for
// each head; at most 64 states. Found once for all channels, in shared memory.
struct MergedHeads {
  float gains[kMaxSpectralSplits][4];
  float reference[4], sum[4];
};
template <int D>
__device__ __forceinline__ void weigh(const float* states, int64_t stride, int count, MergedHeads& merged) {
  const int head = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (head >= 4) return;
  const float* const ends = states + head * (2 * D + 2) + 2 * D;
  const float first = lane < count ? ends[lane * stride] : kHidden;
  const float second = lane + 32 < count ? ends[(lane + 32) * stride] : kHidden;
  const float highest = max_over_warp(fmaxf(first, second));
  const float gains[2] = {weight_of(first, highest), weight_of(second, highest)};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int state = lane + 32 * i;
    if (state >= count) continue;
    merged.gains[state][head] = gains[i];
    sum = fmaf(ends[state * stride + 1], gains[i], sum);
  }
  sum = sum_over_warp(sum);
  if (lane != 0) return;
  merged.reference[head] = highest;
  merged.sum[head] = sum;
}

// Element i of head h of all states together.
template <int D>
__device__ __forceinline__ float merge(const float* states, int64_t stride, int count, const MergedHeads& merged, int h,
                                       int i) {
  float total = 0.0f;
#pragma unroll 16
  for (int state = 0; state < count; ++state) {
    total = fmaf(states[state * stride + h * (2 * D + 2) + i], merged.gains[state][h], total);
  }
  return total;
}

// What all blocks of the heads have left becomes outputs. shared: 4 * (D + kSlices * D) floats.
constexpr int kSlices = 4;  // of coefficients, which as many groups of threads multiply with vectors
template <int D>
__device__ __forceinline__ void finish(const SpectralParams& params, const float* partials, int kv_head,
                                       int64_t first_row, int heads, MergedHeads& merged, float* shared) {
  constexpr int kState = 4 * (2 * D + 2);
  float* const sums = shared;            // [D][4]: of coefficients
  float* const slices = shared + 4 * D;  // [kSlices][D][4]: what a slice of them makes of channels
  const uint16_t* const vectors = params.vectors[1];
  weigh<D>(partials, kState, params.splits, merged);
  __syncthreads();
  for (int i = threadIdx.x; i < 4 * D; i += blockDim.x) {
    sums[4 * (i % D) + i / D] = merge<D>(partials, kState, params.splits, merged, i / D, i % D);
  }
  __syncthreads();
  if (vectors != nullptr) {
    const uint16_t* const own = vectors + static_cast<int64_t>(kv_head) * D * D;
    for (int i = threadIdx.x; i < kSlices * D / 2; i += blockDim.x) {
      const int slice = i / (D / 2), channel = 2 * (i % (D / 2));
      float2 out[4] = {};
#pragma unroll 16
      for (int c = slice * (D / kSlices); c < (slice + 1) * (D / kSlices); ++c) {
        const float2 pair = halves_to_floats(__ldg(reinterpret_cast<const uint32_t*>(own + c * D + channel)));
        const float4 four = *reinterpret_cast<const float4*>(sums + 4 * c);
        const float of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int h = 0; h < 4; ++h) {
          out[h].x = fmaf(of[h], pair.x, out[h].x);
          out[h].y = fmaf(of[h], pair.y, out[h].y);
        }
      }
      float* const to = slices + 4 * (slice * D + channel);
      *reinterpret_cast<float4*>(to) = make_float4(out[0].x, out[1].x, out[2].x, out[3].x);
      *reinterpret_cast<float4*>(to + 4) = make_float4(out[0].y, out[1].y, out[2].y, out[3].y);
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < heads * D; i += blockDim.x) {
    const int h = i / D, c = i % D;
    float output = merge<D>(partials, kState, params.splits, merged, h, D + c);
    for (int slice = 0; vectors != nullptr && slice < kSlices; ++slice) output += slices[4 * (slice * D + c) + h];
    if (vectors == nullptr) output += sums[4 * c + h];
    RowEnd end = {1.0f, merged.sum[h]};
    if (params.ends.any()) {
      const int query_heads = params.kv_heads * params.group;
      end = end_row(params.ends, query_heads, first_row + h, merged.reference[h], end.sum, c == 0);
    }
    const float weighted = output * end.gain;
    store_number(params.outputs, params.type, (first_row + h) * D + c, end.sum > 0.0f ? weighted / end.sum : 0.0f);
  }
}

template <int D>
__global__ void __launch_bounds__(32 * kMaxSpectralWarps, 1)
    spectral_attend(const __grid_constant__ SpectralParams params) {
  extern __shared__ __align__(128) uint8_t shared[];
  let_next_grid_start();
  wait_for_grids_before();  // nothing before this reads or writes global memory
  constexpr int kState = 4 * (2 * D + 2);
  auto* const rows = reinterpret_cast<float*>(shared);
  float* const terms = rows + 4 * D;
  float* const scales = terms + 4 * D;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint8_t* const room = shared + 32 * D + 16 + warp * params.warp_bytes;
  const int split = blockIdx.x, head_rows = blockIdx.y, sequence_index = blockIdx.z;
  const int kv_head = head_rows / params.row_blocks, first_head = head_rows % params.row_blocks * 4;
  const int heads = min(4, params.group - first_head);
  const int64_t first_row =
      (static_cast<int64_t>(sequence_index) * params.kv_heads + kv_head) * params.group + first_head;
  const DeviceSequence& sequence = params.sequences[sequence_index];
  const int begin = static_cast<int>(static_cast<int64_t>(sequence.page_count) * split / params.splits);
  const int end = static_cast<int>(static_cast<int64_t>(sequence.page_count) * (split + 1) / params.splits);

  SpectralFetcher fetcher(params, sequence.pages, begin + warp, end, warps, kv_head, lane,
                          room + warp_room(D, params.columns));
  if (warp < 4) load_queries<D>(params, first_row, heads, warp, lane, rows, scales);
  __syncthreads();
  const uint16_t* const vectors = params.vectors[0];
  make_terms<D>(vectors == nullptr ? nullptr : vectors + static_cast<int64_t>(kv_head) * D * D, rows, terms);
  __syncthreads();

  SpectralWarp<D> state(params, rows, terms, scales[lane % 4], room, lane);
#pragma unroll 1
  for (int page = begin + warp; page < end; page += warps) state.page(fetcher, page == 0 ? sequence.hidden_tokens : 0);
  take_rows<D>(params, sequence, kv_head, split, warp, warps, state);

  wait_all_copies();
  __syncwarp();
  state.write(reinterpret_cast<float*>(room + 16 * D));
  __syncthreads();
  const int64_t group = static_cast<int64_t>(sequence_index) * gridDim.y + head_rows;
  float* const partials = params.partials + group * params.splits * kState;
  const auto* const states = reinterpret_cast<const float*>(shared + 32 * D + 16 + 16 * D);
  auto& merged = *reinterpret_cast<MergedHeads*>(shared);  // queries were read
  static_assert(sizeof(MergedHeads) <= 32 * D, "in their place");
  weigh<D>(states, params.warp_bytes / 4, warps, merged);
  __syncthreads();
  for (int i = threadIdx.x; i < 8 * D; i += blockDim.x) {
    const int h = i / (2 * D), c = i % (2 * D);
    partials[split * kState + h * (2 * D + 2) + c] = merge<D>(states, params.warp_bytes / 4, warps, merged, h, c);
  }
  if (threadIdx.x < 4) {
    float* const ends = partials + split * kState + threadIdx.x * (2 * D + 2) + 2 * D;
    ends[0] = merged.reference[threadIdx.x];
    ends[1] = merged.sum[threadIdx.x];
  }
  __syncthreads();
  auto* const last = reinterpret_cast<int*>(scales);
  if (threadIdx.x == 0) {
    *last = count_arrival(params.arrivals + group) == gridDim.x - 1 ? 1 : 0;
    if (*last != 0) params.arrivals[group] = 0;  // for the next launch
  }
  __syncthreads();
  if (*last != 0)
    finish<D>(params, partials, kv_head, first_row, heads, merged, reinterpret_cast<float*>(shared + 32 * D + 16));
}

}  // namespace

Kernel<SpectralParams> spectral_kernel(int head_dim) {
  return with_head_dim(head_dim, [](auto d) -> Kernel<SpectralParams> { return spectral_attend<d.value>; });
}

}  // namespace kvasir::cuda
