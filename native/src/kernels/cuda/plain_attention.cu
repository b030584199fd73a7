#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/half.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/pattern_layout.h"
#include "kernels/cuda/plain_attention.h"

namespace kvasir::cuda {
namespace {

constexpr int kTokens = 32;      // of a tile: one a lane
constexpr int kWarps = 4;        // of a block
constexpr int kRowsPerWarp = 4;  // query rows
constexpr int kRows = kWarps * kRowsPerWarp;
constexpr int kWantedBlocks = 512;
constexpr int kMaxSplits = 32;

// A state in memory: max, sum, then head_dim outputs.
constexpr int kStateHead = 2;

struct Division {
  int rows;    // of a kv head
  int blocks;  // of rows
  int splits;  // of a chunk's tokens
};

Division division_of(const PlainRequest& request) {
  Division division;
  division.rows = request.tokens * request.group;
  division.blocks = (division.rows + kRows - 1) / kRows;
  division.splits = std::clamp(kWantedBlocks / (division.blocks * request.kv_heads), 1, kMaxSplits);
  return division;
}

__device__ float* state_of(const PlainRequest& request, int rows, int split, int kv_head, int row) {
  const size_t index = (static_cast<size_t>(split) * request.kv_heads + kv_head) * rows + row;
  return request.states + index * (request.head_dim + kStateHead);
}

__device__ int64_t query_offset(const PlainRequest& request, int kv_head, int row) {
  const int64_t head = static_cast<int64_t>(row / request.group) * request.kv_heads * request.group +
                       kv_head * request.group + row % request.group;
  return head * request.head_dim;
}

// Copies rows of a tile to shared memory, `pitch` floats apart; those behind the end are 0.
__device__ void load_tile(const float* rows, int count, int d, float* tile, int pitch) {
  const int vectors = d / 4;
  for (int i = threadIdx.x; i < kTokens * vectors; i += blockDim.x) {
    const int t = i / vectors, v = i % vectors;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    reinterpret_cast<float4*>(tile + t * pitch)[v] =
        t < count ? reinterpret_cast<const float4*>(rows + static_cast<int64_t>(t) * d)[v] : zero;
  }
}

// kChunks: of 32 channels, the last may be half one.
template <int kChunks>
__global__ void __launch_bounds__(32 * kWarps)
    plain_chunk(const __grid_constant__ PlainRequest request, const __grid_constant__ PlainChunk chunk, int rows,
                bool first) {
  extern __shared__ __align__(16) float shared[];
  const int d = request.head_dim, pitch = d + 4;  // the pitch spreads a column of a tile over all banks
  float* queries = shared;                        // [kRows][d]
  float* tile = shared + kRows * d;               // keys, then values, of kTokens tokens
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int kv_head = blockIdx.y, split = blockIdx.z;
  const int first_row = blockIdx.x * kRows;

  for (int i = threadIdx.x; i < kRows * d; i += blockDim.x) {
    const int row = first_row + i / d;
    queries[i] = 0.0f;
    if (row >= rows) continue;
    float number[1];
    load_numbers<1, 1>(request.queries, request.type, query_offset(request, kv_head, row) + i % d, number);
    queries[i] = number[0] * request.scale;
  }

  float peak[kRowsPerWarp], sum[kRowsPerWarp], output[kRowsPerWarp][kChunks];
  int64_t newest[kRowsPerWarp], oldest[kRowsPerWarp];  // visible positions
#pragma unroll
  for (int r = 0; r < kRowsPerWarp; ++r) {
    const int row = first_row + warp * kRowsPerWarp + r;
    newest[r] = row < rows ? request.first_query + row / request.group : -1;
    oldest[r] = request.sliding_window > 0 ? newest[r] - request.sliding_window + 1 : 0;
    const bool known = !first && row < rows;
    const float* state = known ? state_of(request, rows, split, kv_head, row) : nullptr;
    peak[r] = known ? state[0] : -INFINITY;
    sum[r] = known ? state[1] : 0.0f;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int c = 32 * i + lane;
      output[r][i] = known && c < d ? state[kStateHead + c] : 0.0f;
    }
  }

  const int64_t tiles = (chunk.tokens + kTokens - 1) / kTokens;
  const int64_t end = tiles * (split + 1) / gridDim.z;
  for (int64_t t = tiles * split / gridDim.z; t < end; ++t) {
    const int64_t begin = t * kTokens;
    const int count = static_cast<int>(min(chunk.tokens - begin, static_cast<int64_t>(kTokens)));
    const int64_t offset = (kv_head * chunk.stride + begin) * d;
    __syncthreads();
    load_tile(chunk.keys + offset, count, d, tile, pitch);
    __syncthreads();

    float weight[kRowsPerWarp] = {};
    const float4* key = reinterpret_cast<const float4*>(tile + lane * pitch);
    for (int v = 0; v < d / 4; ++v) {
      const float4 k = key[v];
#pragma unroll
      for (int r = 0; r < kRowsPerWarp; ++r) {
        const float4 q = reinterpret_cast<const float4*>(queries + (warp * kRowsPerWarp + r) * d)[v];
        weight[r] = fmaf(q.x, k.x, fmaf(q.y, k.y, fmaf(q.z, k.z, fmaf(q.w, k.w, weight[r]))));
      }
    }
    const int64_t position = chunk.position + begin + lane;
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const bool visible = lane < count && position <= newest[r] && position >= oldest[r];
      float most = visible ? weight[r] : -INFINITY;
      for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
      if (most == -INFINITY) {  // the same in all lanes
        weight[r] = 0.0f;
        continue;
      }
      const float now = fmaxf(peak[r], most);
      const float keep = expf(peak[r] - now);
      weight[r] = visible ? expf(weight[r] - now) : 0.0f;
      float all = weight[r];
      for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(0xffffffffu, all, step);
      sum[r] = sum[r] * keep + all;
      peak[r] = now;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) output[r][i] *= keep;
    }

    __syncthreads();
    load_tile(chunk.values + offset, count, d, tile, pitch);
    __syncthreads();
    for (int token = 0; token < kTokens; ++token) {
      float value[kChunks];
#pragma unroll
      for (int i = 0; i < kChunks; ++i) value[i] = 32 * i + lane < d ? tile[token * pitch + 32 * i + lane] : 0.0f;
#pragma unroll
      for (int r = 0; r < kRowsPerWarp; ++r) {
        const float w = __shfl_sync(0xffffffffu, weight[r], token);
#pragma unroll
        for (int i = 0; i < kChunks; ++i) output[r][i] = fmaf(w, value[i], output[r][i]);
      }
    }
  }

#pragma unroll
  for (int r = 0; r < kRowsPerWarp; ++r) {
    const int row = first_row + warp * kRowsPerWarp + r;
    if (row >= rows) continue;
    float* state = state_of(request, rows, split, kv_head, row);
    if (lane == 0) {
      state[0] = peak[r];
      state[1] = sum[r];
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (32 * i + lane < d) state[kStateHead + 32 * i + lane] = output[r][i];
    }
  }
}

__global__ void plain_finish(const __grid_constant__ PlainRequest request, int rows, int splits) {
  const int row = blockIdx.x, kv_head = blockIdx.y, d = request.head_dim;
  float peak = -INFINITY;
  for (int s = 0; s < splits; ++s) peak = fmaxf(peak, state_of(request, rows, s, kv_head, row)[0]);
  float sum = 0.0f;
  for (int s = 0; s < splits; ++s) {
    const float* state = state_of(request, rows, s, kv_head, row);
    if (state[1] > 0.0f) sum += state[1] * expf(state[0] - peak);
  }
  for (int c = threadIdx.x; c < d; c += blockDim.x) {
    float output = 0.0f;
    for (int s = 0; s < splits; ++s) {
      const float* state = state_of(request, rows, s, kv_head, row);
      if (state[1] > 0.0f) output += state[kStateHead + c] * expf(state[0] - peak);
    }
    store_number(request.outputs, request.type, query_offset(request, kv_head, row) + c,
                 sum > 0.0f ? output / sum : 0.0f);
  }
}

using ChunkKernel = void (*)(PlainRequest, PlainChunk, int, bool);

ChunkKernel chunk_kernel(int head_dim) {
  switch ((head_dim + 31) / 32) {
    case 1:
      return plain_chunk<1>;
    case 2:
      return plain_chunk<2>;
    case 3:
      return plain_chunk<3>;
    case 4:
      return plain_chunk<4>;
    case 5:
      return plain_chunk<5>;
    case 6:
      return plain_chunk<6>;
    case 7:
      return plain_chunk<7>;
    default:
      return plain_chunk<8>;
  }
}

__global__ void turn_keys(const __grid_constant__ KeyTurning turning) {
  const int pairs = turning.head_dim / 2;
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= turning.count * pairs) return;
  const int64_t token = i / pairs;
  const int pair = static_cast<int>(i % pairs);
  double sine, cosine;
  sincos(static_cast<double>(turning.position + token) * turning.frequencies[pair], &sine, &cosine);
  const auto s = static_cast<float>(sine * turning.magnitude), c = static_cast<float>(cosine * turning.magnitude);
  const bool halves = turning.pairs == RopePairs::kHalves;
  const int real = halves ? pair : 2 * pair, imaginary = halves ? pair + pairs : 2 * pair + 1;
  for (int head = 0; head < turning.kv_heads; ++head) {
    float* row = turning.keys + (head * turning.stride + turning.first + token) * turning.head_dim;
    const float a = row[real], b = row[imaginary];
    row[real] = a * c - b * s;
    row[imaginary] = a * s + b * c;
  }
}

__global__ void add_labelled_vectors(const __grid_constant__ LabelledRows rows) {
  const int64_t page = blockIdx.x;
  const int head = blockIdx.y, d = rows.head_dim;
  const PatternTable& table = rows.table;
  const int64_t number = rows.first_page + page;
  const int64_t newer = min(max(number - table.first_page + 1, int64_t{0}), static_cast<int64_t>(table.added));
  const int64_t hidden = max(newer - (kMaxVisible - table.fixed), int64_t{0});
  const uint8_t* labels = rows.pages[page] + rows.label_offset + head * rows.label_stride;
  const uint8_t* vectors = table.vectors + head * table.head_stride;
  const PatternTableLayout layout = {d};
  for (int i = threadIdx.x; i < kTokensPerPage * d; i += blockDim.x) {
    const int token = i / d, channel = i % d;
    const bool keys = rows.side == Side::kKeys;
    const int label = labels[!rows.fragments ? token : keys ? key_label_byte(token) : value_label_byte(token)];
    if (label == 0) continue;
    const int vector = static_cast<int>(label <= table.fixed ? label - 1 : label - 1 + hidden);
    const int64_t byte = keys ? layout.key_byte(vector, channel) : layout.value_byte(vector, channel);
    float* element = rows.rows + (head * rows.stride + page * kTokensPerPage + token) * d + channel;
    *element = __fadd_rn(half_to_float(*reinterpret_cast<const uint16_t*>(vectors + byte)), *element);
  }
}

__global__ void scale_queries(const void* from, void* to, NumberType type, int64_t count, int row, int group,
                              int head_dim, const float* scaling) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  const int within = static_cast<int>(i % row);
  const int kv_head = within / head_dim / group;
  float number[1];
  load_numbers<1, 1>(from, type, i, number);
  store_number(to, type, i, number[0] * scaling[kv_head * head_dim + within % head_dim]);
}

constexpr int kThreads = 256;
unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace

size_t plain_state_bytes(const PlainRequest& request) {
  const Division division = division_of(request);
  return sizeof(float) * static_cast<size_t>(division.splits) * request.kv_heads * division.rows *
         (request.head_dim + kStateHead);
}

cudaError_t launch_plain_chunk(const PlainRequest& request, const PlainChunk& chunk, bool first, cudaStream_t stream) {
  if (chunk.tokens == 0 && !first) return cudaSuccess;
  const Division division = division_of(request);
  const ChunkKernel kernel = chunk_kernel(request.head_dim);
  const int d = request.head_dim;
  const int bytes = static_cast<int>(sizeof(float)) * (kRows * d + kTokens * (d + 4));
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(division.blocks, request.kv_heads, division.splits);
  kernel<<<grid, 32 * kWarps, bytes, stream>>>(request, chunk, division.rows, first);
  return cudaGetLastError();
}

cudaError_t launch_plain_finish(const PlainRequest& request, cudaStream_t stream) {
  const Division division = division_of(request);
  plain_finish<<<dim3(division.rows, request.kv_heads), 64, 0, stream>>>(request, division.rows, division.splits);
  return cudaGetLastError();
}

cudaError_t launch_turn_keys(const KeyTurning& turning, cudaStream_t stream) {
  if (turning.count == 0) return cudaSuccess;
  turn_keys<<<blocks_for(turning.count * turning.head_dim / 2), kThreads, 0, stream>>>(turning);
  return cudaGetLastError();
}

cudaError_t launch_add_labelled_vectors(const LabelledRows& rows, cudaStream_t stream) {
  if (rows.page_count == 0 || !rows.table.vectors) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(rows.page_count), rows.kv_heads);
  add_labelled_vectors<<<grid, kThreads, 0, stream>>>(rows);
  return cudaGetLastError();
}

cudaError_t launch_scale_queries(const void* from, void* to, NumberType type, int64_t tokens, int kv_heads, int group,
                                 int head_dim, const float* scaling, cudaStream_t stream) {
  const int row = kv_heads * group * head_dim;
  const int64_t count = tokens * row;
  if (count == 0) return cudaSuccess;
  scale_queries<<<blocks_for(count), kThreads, 0, stream>>>(from, to, type, count, row, group, head_dim, scaling);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
