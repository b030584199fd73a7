// The end of CommVQ's attention: parts of a sequence are merged, and their sums multiplied by the codebook.
//
// A block takes 128 or 64 rows of the codebook for four query heads of a kv head. The last of a kv head's blocks adds
// up what they all left, in the order of the rows, and the float16 rows of sinks and window.
#include "kernels/cuda/commvq/common.cuh"
#include "kernels/cuda/primitives/arrivals.cuh"
#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/overlapping_launch.h"

namespace kvasir::cuda {
namespace {

constexpr int kParts = 8;  // a thread takes an eighth of the block's rows in the product, and two columns
constexpr int kThreads = 4 * kMergeCodes;  // a row of each head; of fewer rows, some of a sequence's parts
constexpr int kColumns = 2 * kThreads / kParts;
constexpr int kMaxDim = 256;
static_assert(kMaxSplits <= 4 * 32, "a lane keeps four states");

struct Shared {
  float factors[kMaxSplits][4];  // of each part's sums
  float sums[kThreads / 4][4];   // by shares of a sequence's parts, rows
  float products[kParts][4][kMaxDim];
  float row_factor[4];
  float inverse[4];  // of the sum of all weights; 0 where there are none
  int last;
};

// Factors that bring all parts to one maximum. Warp h does head h.
__device__ __forceinline__ void weigh(const CommVqParams& params, int sequence, int head_rows, Shared& shared) {
  const int h = threadIdx.x / 32, lane = threadIdx.x % 32, d = params.tables.head_dim;
  const int kv_head = head_rows / params.row_blocks, in_group = head_rows % params.row_blocks * 4 + h;
  const bool live = in_group < params.group;
  const int head = kv_head * params.group + in_group;
  const float2* states = params.states + int64_t{sequence} * params.splits * params.query_heads() + head;
  const float* row =
      params.row_states +
      (int64_t{sequence} * params.tables.kv_heads * params.row_blocks + head_rows) * row_state_floats(d) + h * (d + 2) +
      d;
  float2 mine[kMaxSplits / 32];
#pragma unroll
  for (int k = 0; k < kMaxSplits / 32; ++k) {
    const int i = lane + 32 * k;
    mine[k] = live && i < params.splits ? states[int64_t{i} * params.query_heads()] : float2{kHidden, 0.0f};
  }
  const float2 rows = live ? float2{row[0], row[1]} : float2{kHidden, 0.0f};
  float highest = rows.y > 0.0f ? rows.x : kHidden;
#pragma unroll
  for (int k = 0; k < kMaxSplits / 32; ++k) highest = fmaxf(highest, mine[k].y > 0.0f ? mine[k].x : kHidden);
  highest = max_over_warp(highest);
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kMaxSplits / 32; ++k) {
    const float factor = mine[k].y > 0.0f ? weight_of(mine[k].x, highest) : 0.0f;
    sum = fmaf(factor, mine[k].y, sum);
    if (lane + 32 * k < params.splits) shared.factors[lane + 32 * k][h] = factor;
  }
  sum = sum_over_warp(sum);
  if (lane == 0) {
    const float factor = rows.y > 0.0f ? weight_of(rows.x, highest) : 0.0f;
    sum = fmaf(factor, rows.y, sum);
    shared.row_factor[h] = factor;
    RowEnd end = {1.0f, sum};
    if (live) {
      const int64_t place = int64_t{sequence} * params.query_heads() + head;
      end = end_row(params.ends, params.query_heads(), place, highest, sum, blockIdx.x == 0);
    }
    shared.inverse[h] = end.sum > 0.0f ? end.gain / end.sum : 0.0f;
  }
}

// Two columns of rows of the codebook, 0 where there are no more.
template <int kPartCodes>
__device__ __forceinline__ void load_columns(const uint16_t* table, int d, int column, int rows,
                                             uint32_t (&elements)[kPartCodes]) {
#pragma unroll
  for (int i = 0; i < kPartCodes; ++i) {
    const auto* from = reinterpret_cast<const uint32_t*>(table + int64_t{i} * d + column);
    elements[i] = i < rows && column < d ? __ldg(from) : 0;
  }
}

// The sum of every kGroups-th part from `first` on for one row of one head, the first kAhead of which are there. Parts
// without tokens left zeros.
template <int kAhead, int kGroups>
__device__ __forceinline__ float sum_parts(const float (&ahead)[kAhead], const float* from, int64_t stride, int splits,
                                           int first, int h, const Shared& shared) {
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    const int i = first + k * kGroups;
    sum = i < splits ? fmaf(shared.factors[i][h], ahead[k], sum) : sum;
  }
#pragma unroll 32
  for (int i = first + kAhead * kGroups; i < splits; i += kGroups) {
    sum = fmaf(shared.factors[i][h], __ldcs(from + i * stride), sum);
  }
  return sum;
}

// Products of two columns of a thread's rows with the sums of all four heads.
template <int kPartCodes, int kGroups>
__device__ __forceinline__ void multiply_columns(const uint32_t (&elements)[kPartCodes], int part, int column,
                                                 Shared& shared) {
  float2 output[4] = {};
#pragma unroll
  for (int i = 0; i < kPartCodes; ++i) {
    const float2 two = halves_to_floats(elements[i]);
    float weights[4] = {};
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      const auto four = *reinterpret_cast<const float4*>(shared.sums[(k * kParts + part) * kPartCodes + i]);
      weights[0] += four.x;
      weights[1] += four.y;
      weights[2] += four.z;
      weights[3] += four.w;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      output[k].x = fmaf(weights[k], two.x, output[k].x);
      output[k].y = fmaf(weights[k], two.y, output[k].y);
    }
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) *reinterpret_cast<float2*>(&shared.products[part][k][column]) = output[k];
}

// kCodes: rows of the codebook. kAhead: parts of a sequence whose sums a thread loads before all else, as registers of
// so many blocks a processor allow.
template <int kCodes, int kAhead, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) merge_kernel(const __grid_constant__ CommVqParams params) {
  __shared__ __align__(16) Shared shared;
  constexpr int kGroups = kMergeCodes / kCodes;  // of threads, which share the parts of a sequence
  constexpr int kPartCodes = kCodes / kParts;
  const int slice = blockIdx.x, head_rows = blockIdx.y, sequence = blockIdx.z, d = params.tables.head_dim;
  const int kv_head = head_rows / params.row_blocks, first_head = head_rows % params.row_blocks * 4;
  const int heads = min(4, params.group - first_head);
  const int codes = min(kCodes, params.codes - slice * kCodes);
  // Columns of this thread's rows of the codebook, which need not wait for the grids before.
  const int part = threadIdx.x / (kThreads / kParts), first = part * kPartCodes;
  const int column = threadIdx.x % (kThreads / kParts) * 2, rows = codes - first;
  const uint16_t* const table = params.value_tables + (int64_t{kv_head} * params.codes + slice * kCodes + first) * d;
  uint32_t elements[kPartCodes];
  load_columns(table, d, column, rows, elements);
  wait_for_grids_before();
  let_next_grid_start();
  // Sums of all parts: a thread has one row of one head. The first ones are on their way before it is known what they
  // are multiplied by.
  const int n = threadIdx.x % kCodes, h = threadIdx.x / kCodes % 4, share = threadIdx.x / (4 * kCodes);
  const int64_t stride = int64_t{params.query_heads()} * params.codes;
  const float* from = params.sums + int64_t{sequence} * params.splits * stride +
                      int64_t{kv_head * params.group + first_head + min(h, heads - 1)} * params.codes + slice * kCodes +
                      min(n, codes - 1);
  float ahead[kAhead];
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    const int i = share + k * kGroups;
    ahead[k] = i < params.splits ? __ldcs(from + i * stride) : 0.0f;
  }
  if (threadIdx.x < 4 * 32) weigh(params, sequence, head_rows, shared);
  __syncthreads();
  shared.sums[share * kCodes + n][h] = sum_parts<kAhead, kGroups>(ahead, from, stride, params.splits, share, h, shared);
  __syncthreads();

  for (int c = column; c < d; c += kColumns) {
    if (c != column) load_columns(table, d, c, rows, elements);
    multiply_columns<kPartCodes, kGroups>(elements, part, c, shared);
  }
  __syncthreads();
  const int64_t group = int64_t{sequence} * gridDim.y + head_rows;
  float* const product = params.shares + (group * gridDim.x + slice) * 4 * d;
  for (int i = threadIdx.x; i < 4 * d; i += kThreads) {
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < kParts; ++part) sum += shared.products[part][i / d][i % d];
    product[i] = sum;
  }
  if (!arrives_last(params.arrivals + group, gridDim.x, &shared.last)) return;
  const float* const shares = params.shares + group * gridDim.x * 4 * d;
  const float* const row_state = params.row_states + group * row_state_floats(d);
  for (int i = threadIdx.x; i < heads * d; i += kThreads) {
    const int h = i / d, c = i % d;
    float output = shared.row_factor[h] > 0.0f ? shared.row_factor[h] * row_state[h * (d + 2) + c] : 0.0f;
#pragma unroll 8
    for (int s = 0; s < static_cast<int>(gridDim.x); ++s) output += shares[(s * 4 + h) * d + c];
    const int64_t row = (int64_t{sequence} * params.tables.kv_heads + kv_head) * params.group + first_head + h;
    store_number(params.outputs, params.type, row * d + c, output * shared.inverse[h]);
  }
}

}  // namespace

cudaError_t launch_merge(const CommVqParams& params, cudaStream_t stream) {
  const dim3 grid(merge_slices(params.codes, params.merge_codes), params.tables.kv_heads * params.row_blocks,
                  params.count);
  const auto kernel = params.merge_codes == kFewMergeCodes ? merge_kernel<kFewMergeCodes, kFewMergeSplits / 2, 1>
                      : params.few_merges                  ? merge_kernel<kMergeCodes, 32, 1>
                                                           : merge_kernel<kMergeCodes, 8, 2>;
  return launch_kernel<CommVqParams>(kernel, {grid, kThreads, 0, params.overlaps}, params, stream);
}

}  // namespace kvasir::cuda
