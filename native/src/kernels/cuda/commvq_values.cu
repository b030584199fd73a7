// Weights times bits: the second kernel of CommVQ's decode attention.
//
// The value of a token is gain * (s C) with one bit in s for each row of C, the same bits for all heads. So what a part
// of a sequence adds up is, for each query head and each row n of C, the sum of weight * gain over the tokens whose bit
// n is set; C comes at the very end. The canonical plane of bits is an A operand as it stands: the 32-bit word of row n
// holds 32 tokens, and shifting it by the number of the lane in its group of four leaves that lane's bytes.
//
// Warp w of a block makes the weights of query heads 4w .. 4w + 3 for the page, as two bytes each (fold.cuh has the
// idea), and leaves them in shared memory; then every warp multiplies its rows of C's bits by the weights of all heads.
#include "kernels/cuda/commvq_common.cuh"
#include "kernels/cuda/fold.cuh"

namespace kvasir::cuda {
namespace {

constexpr float kLowest = -1e30f;  // score of a token that must not be seen, and maximum of no tokens

// What warps leave for each other, twice: one is written while the other is read.
struct PageWeights {
  uint2 fragments[kValueWarps][4][32];  // by heads / 4, step of 32 tokens, lane
  float2 joining[kValueWarps][4];       // of a head: what sums so far are multiplied by, and what this page's are
};

// What a lane needs of a page for its head: scores and gains of tokens 16 i + 2 g and the next, for i < 8. Loaded a
// page ahead.
struct PageInput {
  float2 scores[8];
  uint32_t gains[8];

  __device__ __forceinline__ void load(const CommVqParams& params, const float* from, int64_t slice_stride,
                                       const uint8_t* page_gains, int g) {
    const int64_t tile_stride = static_cast<int64_t>(params.query_heads()) * kTileSize;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      scores[i] = __ldcs(reinterpret_cast<const float2*>(from + i * tile_stride));
      gains[i] = __ldg(reinterpret_cast<const uint32_t*>(page_gains + 2 * (16 * i + 2 * g)));
    }
#pragma unroll 1
    for (int s = 1; s < params.score_slices; ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float2 part = __ldcs(reinterpret_cast<const float2*>(from + s * slice_stride + i * tile_stride));
        scores[i].x += part.x;
        scores[i].y += part.y;
      }
    }
  }
};

struct Weights {
  float highest = kLowest;
  float sum = 0.0f;  // this lane's share

  // One page. Returns fragments of B.
  __device__ __forceinline__ void step(const PageInput& input, int hidden, bool live, int g, uint2 (&fragments)[4],
                                       float2* joining) {
    float weights[16];
    float page_highest = kLowest;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int token = 16 * i + 2 * g;
      weights[2 * i] = token < hidden || !live ? kLowest : input.scores[i].x;
      weights[2 * i + 1] = token + 1 < hidden || !live ? kLowest : input.scores[i].y;
      page_highest = fmaxf(page_highest, fmaxf(weights[2 * i], weights[2 * i + 1]));
    }
    page_highest = max_over_rows(page_highest);
    const float next = fmaxf(highest, page_highest);
    const float keep = exp2_approx(highest - next), gain = exp2_approx(page_highest - next);
    highest = next;
    float total = 0.0f, peak = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 factors = halves_to_floats(input.gains[i]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float weight = exp2_approx(weights[2 * i + k] - page_highest);
        total += weight;
        weights[2 * i + k] = weight * (k == 0 ? factors.x : factors.y);
        peak = fmaxf(peak, fabsf(weights[2 * i + k]));
      }
    }
    sum = fmaf(sum, keep, total * gain);
    peak = max_over_rows(peak);
    const float inverse = peak > 1e-30f ? __fdividef(kQuantum<true>, peak) : 0.0f;
    constexpr float kBias = kRoundingBias + 128.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t even = __float_as_uint(fmaf(weights[2 * i], inverse, kBias));
      const uint32_t odd = __float_as_uint(fmaf(weights[2 * i + 1], inverse, kBias));
      const uint32_t row = __byte_perm(even, odd, 0x4051) ^ 0x80800000u;  // high bytes of both, low bytes of both
      (i % 2 == 0 ? fragments[i / 2].x : fragments[i / 2].y) = transpose(row);
    }
    *joining = {keep, peak * (1.0f / kQuantum<true>)*gain};
  }
};

struct Range {
  int begin, end;
};
__device__ __forceinline__ Range pages_of(const CommVqParams& params, int page_count, int split) {
  return {static_cast<int>(static_cast<int64_t>(page_count) * split / params.splits),
          static_cast<int>(static_cast<int64_t>(page_count) * (split + 1) / params.splits)};
}

__device__ __forceinline__ void page_part(const CommVqParams& params, int split, int sequence_index,
                                          PageWeights* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, h = lane % 4;
  const int code_slice = blockIdx.y % params.code_slices, head_block = blockIdx.y / params.code_slices;
  const int64_t first_tile = pages_before(params, sequence_index, lane) * kTilesPerPage;
  const CommVqSequence& sequence = params.sequences[sequence_index];
  const Range range = pages_of(params, sequence.page_count, split);
  const int query_heads = params.query_heads(), hidden = sequence.hidden_tokens;
  const int my_head = head_block * kBlockHeads + 4 * warp + h;
  const bool live = my_head < query_heads;
  const int64_t tile_stride = static_cast<int64_t>(query_heads) * kTileSize;
  const int64_t slice_stride = params.tiles * tile_stride;
  const float* scores = params.scores + (first_tile + int64_t{range.begin} * kTilesPerPage) * tile_stride +
                        min(my_head, query_heads - 1) * kTileSize + 2 * g;
  const int head_tiles = min(kValueWarps, (query_heads - head_block * kBlockHeads + 3) / 4);

  const int first_code_tile = (code_slice * kValueWarps + warp) * kWarpCodeTiles;
  const int code_tiles = params.codes / kTileSize;
  float sums[kWarpCodeTiles][kValueWarps][2] = {};
  Weights weights;
  PageInput input;
  const bool makes_weights = warp < head_tiles;
  const uint8_t* values = nullptr;       // of the page
  const uint8_t* next_values = nullptr;  // of the one after it: its address is waited for here, not at its own turn
  if (range.begin < range.end) {
    values = sequence.pages[range.begin] + params.value_offset();
    if (makes_weights) input.load(params, scores, slice_stride, values, g);
  }
  for (int page = range.begin; page < range.end; ++page, values = next_values) {
    if (page + 1 < range.end) next_values = sequence.pages[page + 1] + params.value_offset();
    uint32_t bits[kWarpCodeTiles][4][2];
#pragma unroll
    for (int t = 0; t < kWarpCodeTiles; ++t) {
      const uint8_t* from =
          values + 2 * kTokensPerPage + static_cast<int64_t>(min(first_code_tile + t, code_tiles - 1)) * 256;
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        bits[t][s][0] = __ldg(reinterpret_cast<const uint32_t*>(from + 64 * s + 4 * g));
        bits[t][s][1] = __ldg(reinterpret_cast<const uint32_t*>(from + 64 * s + 4 * g + 32));
      }
    }
    PageWeights& mine = shared[(page - range.begin) % 2];
    if (makes_weights) {
      uint2 fragments[4];
      float2 joining;
      weights.step(input, page == 0 ? hidden : 0, live, g, fragments, &joining);
#pragma unroll
      for (int s = 0; s < 4; ++s) mine.fragments[warp][s][lane] = fragments[s];
      if (g == 0) mine.joining[warp][h] = joining;
      scores += kTilesPerPage * tile_stride;
      if (page + 1 < range.end) input.load(params, scores, slice_stride, next_values, g);
    }
    uint32_t a[kWarpCodeTiles][4][4];  // unpacked once for all heads
#pragma unroll
    for (int t = 0; t < kWarpCodeTiles; ++t) {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const uint32_t low = bits[t][s][0] >> h, high = bits[t][s][1] >> h;
        a[t][s][0] = low & 0x01010101u;
        a[t][s][1] = high & 0x01010101u;
        a[t][s][2] = low >> 4 & 0x01010101u;
        a[t][s][3] = high >> 4 & 0x01010101u;
      }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kValueWarps; ++n) {
      if (n >= head_tiles) break;
      int products[kWarpCodeTiles][4] = {};
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const uint2 b = mine.fragments[n][s][lane];
#pragma unroll
        for (int t = 0; t < kWarpCodeTiles; ++t) {
          mma_bytes<true>(products[t], a[t][s], b.x, b.y);
        }
      }
      const float2 joining = mine.joining[n][h];
#pragma unroll
      for (int t = 0; t < kWarpCodeTiles; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float product = __int2float_rn(products[t][2 * r] * 256 + products[t][2 * r + 1]);
          sums[t][n][r] = fmaf(product, joining.y, sums[t][n][r] * joining.x);
        }
      }
    }
  }

  const int64_t part = int64_t{sequence_index} * params.splits + split;
  if (code_slice == 0 && warp < head_tiles) {
    const float sum = sum_over_rows(weights.sum);
    if (g == 0 && live) params.states[part * query_heads + my_head] = {weights.highest, sum};
  }
#pragma unroll
  for (int n = 0; n < kValueWarps; ++n) {
    const int head = head_block * kBlockHeads + 4 * n + h;
    if (head >= query_heads) break;
#pragma unroll
    for (int t = 0; t < kWarpCodeTiles; ++t) {
      if (first_code_tile + t >= code_tiles) continue;
      float* to = params.sums + (part * query_heads + head) * params.codes + (first_code_tile + t) * kTileSize + g;
      to[0] = sums[t][n][0];
      to[8] = sums[t][n][1];
    }
  }
}

// Float16 rows, four query heads of a kv head: the whole block.
class RowPart {
 public:
  __device__ RowPart(const CommVqParams& params, int sequence, int head_rows, float* shared)
      : params_(params),
        sequence_(params.sequences[sequence]),
        kv_head_(head_rows / params.row_blocks),
        first_head_(head_rows % params.row_blocks * 4),
        d_(params.tables.head_dim),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        queries_(shared),
        scores_(shared + 4 * kMaxDim + warp_ * 64) {
    for (int i = threadIdx.x; i < 4 * d_ / 2; i += blockDim.x) {
      const int h = i / (d_ / 2), j = i % (d_ / 2);
      const bool live = first_head_ + h < params.group;
      const int64_t row =
          ((int64_t{sequence} * params.tables.kv_heads + kv_head_) * params.group + first_head_ + h) * d_;
      queries_[h * kMaxDim + 2 * j] =
          live ? load_number(params.queries, params.type, row + first_channel(params, j)) * params.scale : 0.0f;
      queries_[h * kMaxDim + 2 * j + 1] =
          live ? load_number(params.queries, params.type, row + second_channel(params, j)) * params.scale : 0.0f;
    }
    __syncthreads();
  }

  __device__ void run(float* states, float* out) {
    int tile = warp_;
    tile = span(sequence_.sinks, sequence_.sink_token, tile);
    span(sequence_.window, sequence_.window_token, tile);
    merge(states, out);
  }

  static constexpr int kMaxDim = 256;
  static constexpr int kFloats = 4 * kMaxDim + kValueWarps * 64;

 private:
  // The tiles of a span whose turn it is for this warp; returns how many tiles later its next turn comes.
  __device__ int span(const RowSpan& rows, int64_t token, int tile) {
    const int first = rows.begin / kTileSize,
              count = rows.end > rows.begin ? (rows.end - 1) / kTileSize - first + 1 : 0;
    for (; tile < count; tile += kValueWarps) step(rows, token, first + tile);
    return tile - count;
  }

  __device__ void step(const RowSpan& rows, int64_t token, int tile) {
    const RowTileLayout layout = {d_};
    const uint8_t* const data = rows.tiles + kv_head_ * rows.head_stride + static_cast<int64_t>(tile) * layout.bytes();
    const int begin = max(rows.begin - tile * kTileSize, 0), end = min(rows.end - tile * kTileSize, kTileSize);
    const KeyTableLayout& tables = params_.tables;
    const int slice_pairs = tables.slice_pairs();
    __syncwarp();
    for (int t = begin; t < end; ++t) {
      const int64_t number = token + tile * kTileSize + t;
      const int64_t position = number + shift_of(sequence_, number);
      float sums[4] = {};
      for (int j = lane_; j < d_ / 2; j += 32) {
        const uint8_t* slice = params_.key_tables + tables.slice_offset(0, j / slice_pairs, 0);
        const double* turns = reinterpret_cast<const double*>(slice);
        const float magnitude = reinterpret_cast<const float*>(turns + slice_pairs)[slice_pairs];
        const float2 w = turn_of(position, turns[j % slice_pairs]);
        const float re = half_at(data + layout.key_byte(t, first_channel(params_, j)));
        const float im = half_at(data + layout.key_byte(t, second_channel(params_, j)));
        const float x = (re * w.x - im * w.y) * magnitude, y = (re * w.y + im * w.x) * magnitude;
#pragma unroll
        for (int h = 0; h < 4; ++h) {
          const float2 q = *reinterpret_cast<const float2*>(queries_ + h * kMaxDim + 2 * j);
          sums[h] = fmaf(q.x, x, fmaf(q.y, y, sums[h]));
        }
      }
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        const float score = sum_over_warp(sums[h]);
        if (lane_ == h) scores_[t * 4 + h] = score;
      }
    }
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      float next = highest_[h];
      for (int t = begin; t < end; ++t) next = fmaxf(next, scores_[t * 4 + h]);
      const float keep = exp2_approx(highest_[h] - next);
      highest_[h] = next;
      sum_[h] *= keep;
#pragma unroll
      for (int k = 0; k < kMaxDim / 32; ++k) output_[h][k] *= keep;
    }
    for (int t = begin; t < end; ++t) {
      float weights[4];
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        weights[h] = exp2_approx(scores_[t * 4 + h] - highest_[h]);
        sum_[h] += weights[h];
      }
#pragma unroll
      for (int k = 0; k < kMaxDim / 32; ++k) {
        const int c = lane_ + 32 * k;
        if (c >= d_) break;
        const float value = half_at(data + layout.value_byte(t, c));
#pragma unroll
        for (int h = 0; h < 4; ++h) output_[h][k] = fmaf(weights[h], value, output_[h][k]);
      }
    }
  }

  // states: room for the states of all warps, in shared memory.
  __device__ void merge(float* states, float* out) {
    const int head_floats = d_ + 2;
    float* const mine = states + warp_ * 4 * head_floats;
#pragma unroll
    for (int h = 0; h < 4; ++h) {
#pragma unroll
      for (int k = 0; k < kMaxDim / 32; ++k) {
        if (lane_ + 32 * k < d_) mine[h * head_floats + lane_ + 32 * k] = output_[h][k];
      }
      if (lane_ == 0) {
        mine[h * head_floats + d_] = highest_[h];
        mine[h * head_floats + d_ + 1] = sum_[h];
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 4 * head_floats; i += blockDim.x) {
      const int h = i / head_floats, c = i % head_floats;
      float highest = kLowest, total = 0.0f;
      for (int w = 0; w < kValueWarps; ++w) highest = fmaxf(highest, states[(w * 4 + h) * head_floats + d_]);
      for (int w = 0; w < kValueWarps; ++w) {
        const float* state = states + (w * 4 + h) * head_floats;
        total = fmaf(state[c], exp2_approx(state[d_] - highest), total);
      }
      out[i] = c == d_ ? highest : total;
    }
  }

  __device__ __forceinline__ static float half_at(const uint8_t* at) {
    return halves_to_floats(*reinterpret_cast<const uint16_t*>(at)).x;
  }

  const CommVqParams& params_;
  const CommVqSequence& sequence_;
  const int kv_head_, first_head_, d_, lane_, warp_;
  float* const queries_;  // [4][kMaxDim], pair by pair, scaled
  float* const scores_;   // [16][4], of this warp
  float highest_[4] = {kLowest, kLowest, kLowest, kLowest};
  float sum_[4] = {};
  float output_[4][kMaxDim / 32] = {};
};

constexpr int kStateFloats = kValueWarps * row_state_floats(RowPart::kMaxDim);

__global__ void __launch_bounds__(32 * kValueWarps, 2) value_kernel(const __grid_constant__ CommVqParams params) {
  __shared__ __align__(16) union {
    PageWeights weights[2];
    float rows[RowPart::kFloats + kStateFloats];
  } shared;
  const int sequence = blockIdx.z;
  if (static_cast<int>(blockIdx.x) >= params.row_columns) {
    page_part(params, blockIdx.x - params.row_columns, sequence, shared.weights);
    return;
  }
  const int head_rows = blockIdx.x * gridDim.y + blockIdx.y;  // kv head * row blocks + row block
  if (head_rows >= params.tables.kv_heads * params.row_blocks) return;
  const int64_t state = int64_t{sequence} * params.tables.kv_heads * params.row_blocks + head_rows;
  RowPart(params, sequence, head_rows, shared.rows)
      .run(shared.rows + RowPart::kFloats, params.row_states + state * row_state_floats(params.tables.head_dim));
}

}  // namespace

cudaError_t launch_values(const CommVqParams& params, cudaStream_t stream) {
  const dim3 grid(params.row_columns + params.splits, params.code_slices * params.head_blocks, params.count);
  value_kernel<<<grid, 32 * kValueWarps, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
