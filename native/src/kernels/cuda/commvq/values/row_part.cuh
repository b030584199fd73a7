// Attention on the float16 rows of sinks and window, for the second kernel of CommVQ's attention.
#pragma once

#include "kernels/cuda/attend/row_span.cuh"
#include "kernels/cuda/commvq/common.cuh"

namespace kvasir::cuda {

// Four query heads of a kv head. The whole block, of kRowWarps warps or more.
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
        scores_(shared + 4 * kMaxDim + warp_ % kRowWarps * 64) {
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

  // states: room for kStateFloats in shared memory.
  __device__ void run(float* states, float* out) {
    if (warp_ < kRowWarps) {
      const int tile = span(sequence_.sinks, sequence_.sink_token, warp_);
      span(sequence_.window, sequence_.window_token, tile);
      leave(states + warp_ * row_state_floats(d_));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < row_state_floats(d_); i += blockDim.x) {
      out[i] = merged_element(states, row_state_floats(d_), kRowWarps, d_, i);
    }
  }

  static constexpr int kRowWarps = 8;
  static constexpr int kMaxDim = 256;
  static constexpr int kFloats = 4 * kMaxDim + kRowWarps * 64;
  static constexpr int kStateFloats = kRowWarps * row_state_floats(kMaxDim);

 private:
  // The tiles of a span whose turn it is for this warp; returns how many tiles later its next turn comes.
  __device__ int span(const RowSpan& rows, int64_t token, int tile) {
    const int first = rows.begin / kTileSize, count = row_tiles(rows);
    for (; tile < count; tile += kRowWarps) step(rows, token, first + tile);
    return tile - count;
  }

  __device__ void step(const RowSpan& rows, int64_t token, int tile) {
    const RowTileLayout layout = {d_};
    const uint8_t* const data = row_tile(rows, tile, kv_head_, layout);
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
        if (lane_ == h) scores_[t * 4 + h] = params_.cap > 0.0f ? capped(score, params_.cap) : score;
      }
    }
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      float next = highest_[h];
      for (int t = begin; t < end; ++t) next = fmaxf(next, scores_[t * 4 + h]);
      const float keep = move_reference(highest_[h], next);
      sum_[h] *= keep;
#pragma unroll
      for (int k = 0; k < kMaxDim / 32; ++k) output_[h][k] *= keep;
    }
    for (int t = begin; t < end; ++t) {
      float weights[4];
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        weights[h] = weight_of(scores_[t * 4 + h], highest_[h]);
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

  // This warp's state, to shared memory.
  __device__ void leave(float* mine) const {
    const int head_floats = d_ + 2;
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
  }

  __device__ __forceinline__ static float half_at(const uint8_t* at) {
    return halves_to_floats(*reinterpret_cast<const uint16_t*>(at)).x;
  }

  const CommVqParams& params_;
  const CommVqSequence& sequence_;
  const int kv_head_, first_head_, d_, lane_, warp_;
  float* const queries_;  // [4][kMaxDim], pair by pair, scaled
  float* const scores_;   // [16][4], of this warp
  float highest_[4] = {kHidden, kHidden, kHidden, kHidden};
  float sum_[4] = {};
  float output_[4][kMaxDim / 32] = {};
};

}  // namespace kvasir::cuda
