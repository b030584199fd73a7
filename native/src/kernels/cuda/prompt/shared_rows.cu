#include <algorithm>
#include <cmath>

#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/primitives/shared_memory.h"
#include "kernels/cuda/primitives/softmax.cuh"
#include "kernels/cuda/prompt/shared_rows.h"

namespace kvasir::cuda {
namespace {

constexpr int kMostChannels = 576;
constexpr int kThreads = kMostChannels / 2;  // each has two channels of the outputs
constexpr int kRows = 16;                    // query rows of a block
constexpr int kTokens = 16;                  // of a step
constexpr int kPad = 4;        // floats between rows in shared memory: eight lanes meet eight banks' fours
constexpr int kStateHead = 2;  // reference and sum, before the outputs
constexpr int kWantedBlocks = 256;
constexpr int kMaxSplits = 64;
static_assert(kRows * kTokens <= kThreads, "a thread for each score of a step");

struct Division {
  int rows, splits;
};
Division division_of(const PromptRequest& request) {
  const int rows = request.tokens * request.group, blocks = (rows + kRows - 1) / kRows;
  return {rows, std::clamp(kWantedBlocks / blocks, 1, kMaxSplits)};
}

struct Shared {
  float weights[kTokens][kRows];
  float reference[kRows], sum[kRows], keep[kRows];
};
size_t shared_bytes(int d) {
  return sizeof(Shared) + sizeof(float) * static_cast<size_t>(kRows + kTokens) * (d + kPad);
}

__device__ __forceinline__ bool sees(const PromptRequest& request, int query, int64_t token) {
  int64_t position = request.first_query + query;
  if (request.masks != nullptr) {
    const PromptMask mask = request.masks[query];
    if (token >= request.masked_from) return (mask.bits >> (token - request.masked_from) & 1) != 0;
    position = mask.position;
  }
  return token <= position && (request.sliding_window == 0 || token > position - request.sliding_window);
}

__device__ __forceinline__ void load_rows(const SharedRows& rows, int d, int64_t first, float* out) {
  const int half = d / 2, slice = half / rows.slices;
  for (int i = threadIdx.x; i < kTokens * d / 4; i += kThreads) {
    const int token = i / (d / 4), c = i % (d / 4) * 4;
    float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (first + token < rows.tokens) {
      const int64_t row = static_cast<int64_t>(c % half / slice) * rows.stride + first + token;
      four = *reinterpret_cast<const float4*>(rows.halves[c / half] + row * slice + c % slice);
    }
    *reinterpret_cast<float4*>(out + token * (d + kPad) + c) = four;
  }
}

// The state of query row `row` of a split.
__device__ __forceinline__ float* state_of(const PromptRequest& request, int value_dim, int rows, int split, int row) {
  return request.states + (static_cast<int64_t>(split) * rows + row) * (value_dim + kStateHead);
}

__global__ void __launch_bounds__(kThreads)
    shared_rows_part(const __grid_constant__ PromptRequest request, int value_dim,
                     const __grid_constant__ SharedRows rows, Division division, bool first) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int d = request.head_dim, thread = threadIdx.x, c = 2 * thread;
  float* const queries = reinterpret_cast<float*>(memory + sizeof(Shared));
  float* const tile = queries + kRows * (d + kPad);
  const int first_row = blockIdx.x * kRows, count = min(kRows, division.rows - first_row);

  for (int i = thread; i < kRows * d; i += kThreads) {
    const int r = i / d;
    queries[r * (d + kPad) + i % d] =
        r < count ? load_number(request.queries, request.type, static_cast<int64_t>(first_row + r) * d + i % d) *
                        request.scale
                  : 0.0f;
  }
  float outputs[kRows][2] = {};
  for (int r = 0; r < count && !first; ++r) {
    const float* state = state_of(request, value_dim, division.rows, blockIdx.y, first_row + r);
    if (c < value_dim) outputs[r][0] = state[kStateHead + c], outputs[r][1] = state[kStateHead + c + 1];
  }
  if (thread < kRows) {
    const bool known = !first && thread < count;
    const float* state = state_of(request, value_dim, division.rows, blockIdx.y, first_row + thread);
    shared.reference[thread] = known ? state[0] : -INFINITY;
    shared.sum[thread] = known ? state[1] : 0.0f;
  }

  const int64_t steps = (rows.tokens + kTokens - 1) / kTokens;
  const int64_t end = steps * (blockIdx.y + 1) / division.splits;
  for (int64_t step = steps * blockIdx.y / division.splits; step < end; ++step) {
    __syncthreads();
    load_rows(rows, d, step * kTokens, tile);
    __syncthreads();
    if (thread < kRows * kTokens) {
      const int r = thread / kTokens, t = thread % kTokens;
      const auto* query = reinterpret_cast<const float4*>(queries + r * (d + kPad));
      const auto* key = reinterpret_cast<const float4*>(tile + t * (d + kPad));
      float score = 0.0f;
      for (int i = 0; i < d / 4; ++i) {
        const float4 q = query[i], k = key[i];
        score = fmaf(q.x, k.x, fmaf(q.y, k.y, fmaf(q.z, k.z, fmaf(q.w, k.w, score))));
      }
      if (request.soft_cap > 0.0f) score = capped(score, request.soft_cap);
      const int64_t token = step * kTokens + t;
      const bool visible =
          r < count && token < rows.tokens && sees(request, (first_row + r) / request.group, rows.position + token);
      shared.weights[t][r] = visible ? score * kLog2E : -INFINITY;
    }
    __syncthreads();
    if (thread < kRows) {
      float highest = shared.reference[thread];
      for (int t = 0; t < kTokens; ++t) highest = fmaxf(highest, shared.weights[t][thread]);
      const float reference = finite_reference(highest);
      float sum = 0.0f;
      for (int t = 0; t < kTokens; ++t) {
        const float weight = exp2f(shared.weights[t][thread] - reference);
        shared.weights[t][thread] = weight;
        sum += weight;
      }
      const float keep = exp2f(shared.reference[thread] - reference);
      shared.keep[thread] = keep;
      shared.sum[thread] = fmaf(shared.sum[thread], keep, sum);
      shared.reference[thread] = highest;
    }
    __syncthreads();
    if (c < value_dim) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        outputs[r][0] *= shared.keep[r];
        outputs[r][1] *= shared.keep[r];
      }
      for (int t = 0; t < kTokens; ++t) {
        const float2 value = *reinterpret_cast<const float2*>(tile + t * (d + kPad) + c);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          outputs[r][0] = fmaf(shared.weights[t][r], value.x, outputs[r][0]);
          outputs[r][1] = fmaf(shared.weights[t][r], value.y, outputs[r][1]);
        }
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= count) break;
    float* state = state_of(request, value_dim, division.rows, blockIdx.y, first_row + r);
    if (c < value_dim) state[kStateHead + c] = outputs[r][0], state[kStateHead + c + 1] = outputs[r][1];
    if (thread == r) state[0] = shared.reference[r], state[1] = shared.sum[r];
  }
}

// A block merges the splits of one row.
__global__ void __launch_bounds__(kThreads)
    shared_rows_finish(const __grid_constant__ PromptRequest request, int value_dim, Division division) {
  const int row = blockIdx.x;
  const auto state = [&](int split) { return state_of(request, value_dim, division.rows, split, row); };
  float highest = -INFINITY, sum = 0.0f;
  for (int s = 0; s < division.splits; ++s) highest = fmaxf(highest, state(s)[0]);
  const float reference = finite_reference(highest);
  for (int s = 0; s < division.splits; ++s) sum += state(s)[1] * exp2f(state(s)[0] - reference);
  const RowEnd end = end_row(request.ends, request.group, row, reference, sum, threadIdx.x == 0);
  for (int c = threadIdx.x; c < value_dim; c += kThreads) {
    float output = 0.0f;
    for (int s = 0; s < division.splits; ++s) output += state(s)[kStateHead + c] * exp2f(state(s)[0] - reference);
    store_number(request.outputs, request.type, static_cast<int64_t>(row) * value_dim + c,
                 end.sum > 0.0f ? output * end.gain / end.sum : 0.0f);
  }
}

bool known(const PromptRequest& request, int value_dim) {
  const int d = request.head_dim;
  return d % 64 == 0 && d >= 64 && d <= kMostChannels && value_dim % 2 == 0 && value_dim > 0 && value_dim <= d &&
         request.kv_heads == 1 && request.group > 0 && request.tokens > 0;
}

}  // namespace

size_t shared_rows_state_bytes(const PromptRequest& request, int value_dim) {
  const Division division = division_of(request);
  return sizeof(float) * static_cast<size_t>(division.splits) * static_cast<size_t>(division.rows) *
         static_cast<size_t>(value_dim + kStateHead);
}

cudaError_t launch_shared_rows_part(const PromptRequest& request, int value_dim, const SharedRows& rows, bool first,
                                    cudaStream_t stream) {
  if (!known(request, value_dim)) return cudaErrorInvalidValue;
  if (rows.tokens == 0 && !first) return cudaSuccess;
  const Division division = division_of(request);
  const auto bytes = static_cast<int>(shared_bytes(request.head_dim));
  const cudaError_t error = allow_shared_memory(shared_rows_part, bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid((division.rows + kRows - 1) / kRows, division.splits);
  shared_rows_part<<<grid, kThreads, bytes, stream>>>(request, value_dim, rows, division, first);
  return cudaGetLastError();
}

cudaError_t launch_shared_rows_finish(const PromptRequest& request, int value_dim, cudaStream_t stream) {
  if (!known(request, value_dim)) return cudaErrorInvalidValue;
  const Division division = division_of(request);
  shared_rows_finish<<<division.rows, kThreads, 0, stream>>>(request, value_dim, division);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
