// Attention over spectral pages in one launch.
//
// A block takes a part of one sequence for four query heads of a kv head. Coefficients of its queries are made first,
// while pages are on their way; then a warp takes whole pages, alone. The block merges what its warps have, and the
// last block of the heads what all have left: sums of coefficients, which become channels there, once.
#include "kernels/cuda/attend/row_span.cuh"
#include "kernels/cuda/layout/head_dims.h"
#include "kernels/cuda/primitives/arrivals.cuh"
#include "kernels/cuda/primitives/merged_head.cuh"
#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/primitives/uniform.cuh"
#include "kernels/cuda/spectral/basis.cuh"
#include "kernels/cuda/spectral/warp.cuh"

namespace kvasir::cuda {
namespace {

// Coefficients of the queries of four heads, in two parts: what it reads is on its way while pages are asked for.
template <int D>
class QueryTerms {
 public:
  // first_row: of the first head, of which there are `heads`. A warp for each loads it.
  __device__ __forceinline__ QueryTerms(const SpectralParams& params, int64_t first_row, int heads, int kv_head)
      : warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        vectors_(params.vectors[0] == nullptr ? nullptr : params.vectors[0] + static_cast<int64_t>(kv_head) * D * D) {
    if (vectors_ != nullptr && warp_ < D / 16) basis_.load(vectors_, warp_, lane_);
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const int64_t index = (first_row + min(warp_, heads - 1)) * D + lane_ + 32 * i;
      const float value = load_unbranched(params.queries, params.type, index);
      values_[i] = warp_ < heads ? value : 0.0f;
    }
  }

  // rows: queries [D][4], scaled to 1 at most; what products with them are multiplied by to be scores goes to scales.
  // terms[place_of(c)][h] = <query h, vector c>. room: of a warp, which is not used yet. All threads.
  __device__ __forceinline__ void make(float scale, float* rows, float* terms, float* scales, uint8_t* room) {
    auto* const split = reinterpret_cast<uint16_t*>(room);
    if (warp_ < 4) put_query(scale, rows, split, scales);
    __syncthreads();
    if (vectors_ == nullptr) {
      for (int i = threadIdx.x; i < 4 * D; i += blockDim.x) terms[4 * place_of<D>(i / 4) + i % 4] = rows[i];
    } else {
#pragma unroll 1
      for (int tile = warp_; tile < D / 16; tile += static_cast<int>(blockDim.x / 32)) {
        if (tile != warp_) basis_.load(vectors_, tile, lane_);
        const float2 products = basis_.times(split, lane_);
        const int c = 16 * tile + lane_ / 4;
        terms[4 * place_of<D>(c) + lane_ % 4] = products.x;
        terms[4 * place_of<D>(c + 8) + lane_ % 4] = products.y;
      }
    }
    __syncthreads();
  }

 private:
  __device__ __forceinline__ void put_query(float scale, float* rows, uint16_t* split, float* scales) const {
    float peak = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) peak = fmaxf(peak, fabsf(values_[i]));
    peak = max_over_warp(peak);
    const float inverse = inverse_peak(peak);
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      rows[4 * (lane_ + 32 * i) + warp_] = values_[i] * inverse;
      put_split_query<D>(split, warp_, lane_ + 32 * i, values_[i] * inverse);
    }
    if (lane_ == 0) scales[warp_] = peak * scale;
  }

  const int warp_, lane_;
  const uint16_t* const vectors_;
  BasisTile<D> basis_;
  float values_[D / 32];
};

// States of four heads, whose two parts are sums of coefficients and outputs of rows.
template <int D, class Use>
__device__ __forceinline__ void merge_states(const float* states, int64_t stride, int count, const Use& use) {
  static_assert(kMaxSpectralSplits <= kMaxMergedStates && kMaxSpectralWarps <= kMaxMergedStates);
  merge_heads<D, 2, state_floats(D)>(states, stride, count, use);
}

// What all blocks of the heads have left becomes outputs. shared: 4 * (2 * D + 2 + slices * D) floats.
template <int D>
__device__ __forceinline__ void finish(const SpectralParams& params, const float* partials, int kv_head,
                                       int64_t first_row, int heads, float* shared) {
  float* const sums = shared;             // [D][4]: of coefficients
  float* const outputs = shared + 4 * D;  // [4][D]: of rows
  float* const ends = shared + 8 * D;     // [4][2]: greatest score, sum of weights
  float* const slices = ends + 8;
  const bool basis = params.vectors[1] != nullptr;
  const BasisSlices<D> vectors(basis ? params.vectors[1] + static_cast<int64_t>(kv_head) * D * D : nullptr);
  merge_states<D>(partials, 4 * state_floats(D), params.splits, [&](int i, const auto& merged) {
    sums[4 * (i % D) + i / D] = merged.sums[0];
    outputs[i] = merged.sums[1];
    if (i % D == 0) {
      ends[2 * (i / D)] = merged.reference;
      ends[2 * (i / D) + 1] = merged.sum;
    }
  });
  __syncthreads();
  if (basis) {
    vectors.multiply(sums, slices);
    __syncthreads();
  }
  for (int i = threadIdx.x; i < heads * D; i += blockDim.x) {
    const int h = i / D, c = i % D;
    const float output = outputs[i] + (basis ? vectors.channel(slices, i) : sums[4 * c + h]);
    RowEnd end = {1.0f, ends[2 * h + 1]};
    if (params.ends.any()) {
      const int query_heads = params.kv_heads * params.group;
      end = end_row(params.ends, query_heads, first_row + h, ends[2 * h], end.sum, c == 0);
    }
    const float weighted = output * end.gain;
    store_number(params.outputs, params.type, (first_row + h) * D + c, end.sum > 0.0f ? weighted / end.sum : 0.0f);
  }
}

// Leaves the block's state among those of the heads, and returns whether it was the last.
template <int D>
__device__ __forceinline__ bool leave_state(const SpectralParams& params, const float* states, float* partials,
                                            uint32_t* arrivals, int* last) {
  float* const own = partials + blockIdx.x * (4 * state_floats(D));
  const int warps = blockDim.x / 32;
  merge_states<D>(states, params.warp_bytes / 4, warps, [&](int i, const auto& merged) {
    float* const head = own + i / D * state_floats(D);
    head[i % D] = merged.sums[0];
    head[D + i % D] = merged.sums[1];
    if (i % D == 0) {
      head[2 * D] = merged.reference;
      head[2 * D + 1] = merged.sum;
    }
  });
  return arrives_last(arrivals, gridDim.x, last);
}

template <int D>
__global__ void __launch_bounds__(32 * kMaxSpectralWarps, 1)
    spectral_attend(const __grid_constant__ SpectralParams params) {
  extern __shared__ __align__(128) uint8_t shared[];
  let_next_grid_start();
  wait_for_grids_before();  // nothing before this reads or writes global memory
  auto* const rows = reinterpret_cast<float*>(shared);
  float* const terms = rows + 4 * D;
  float* const scales = terms + 4 * D;
  uint8_t* const rooms = shared + rooms_offset(D);
  const int warps = blockDim.x / 32, warp = warp_index(), lane = threadIdx.x % 32;
  uint8_t* const room = rooms + warp * params.warp_bytes;
  const int split = blockIdx.x, head_rows = blockIdx.y, sequence_index = blockIdx.z;
  const int kv_head = head_rows / params.row_blocks, first_head = head_rows % params.row_blocks * 4;
  const int heads = min(4, params.group - first_head);
  const int64_t first_row =
      (static_cast<int64_t>(sequence_index) * params.kv_heads + kv_head) * params.group + first_head;
  const DeviceSequence& sequence = params.sequences[sequence_index];
  const int begin = static_cast<int>(static_cast<int64_t>(sequence.page_count) * split / params.splits);
  const int end = static_cast<int>(static_cast<int64_t>(sequence.page_count) * (split + 1) / params.splits);

  QueryTerms<D> queries(params, first_row, heads, kv_head);
  uint8_t* const slots = room + slots_offset(D, params.columns);
  SpectralFetcher fetcher(params, sequence.pages, begin + warp, end, warps, kv_head, lane, slots,
                          slots - kWarpBarriers);
  if (split == 0) prefetch_basis<D>(params.vectors[1], kv_head);
  queries.make(params.scale, rows, terms, scales, rooms);
  SpectralWarp<D> state(params, rows, terms, scales[lane % 4], room, lane);
#pragma unroll 1
  for (int page = begin + warp; page < end; page += warps) state.page(fetcher, page == 0 ? sequence.hidden_tokens : 0);
  take_rows<D>(sequence, kv_head, split, params.splits, warp, warps, state);

  wait_all_copies();
  __syncwarp();
  state.write(reinterpret_cast<float*>(room + sums_bytes(D)));
  __syncthreads();
  const int64_t group = static_cast<int64_t>(sequence_index) * gridDim.y + head_rows;
  float* const partials = params.partials + group * params.splits * (4 * state_floats(D));
  if (leave_state<D>(params, reinterpret_cast<const float*>(rooms + sums_bytes(D)), partials, params.arrivals + group,
                     reinterpret_cast<int*>(scales))) {
    finish<D>(params, partials, kv_head, first_row, heads, reinterpret_cast<float*>(rooms));
  }
}

}  // namespace

Kernel<SpectralParams> spectral_kernel(int head_dim) {
  return with_head_dim(head_dim, [](auto d) -> Kernel<SpectralParams> { return spectral_attend<d.value>; });
}

}  // namespace kvasir::cuda
