// Scores of CommVQ's keys: tables in shared memory, sums in packed whole numbers, RoPE in float, products on tensor
// cores.
//
// A block holds one slice of one kv head's tables. A warp takes 16 tokens of a page at a time: four lanes a token, each
// of which owns a quarter of every row, so that a 128-bit load a lane reads 64 bytes of eight rows. Two rows that are
// read together would meet in the same banks; odd tokens therefore read the chunks of a row in another order.
//
// With P the position of a tile's token 0 or 8 and t < 8 what a token is after that, <q, R(P + t) k> = <R(-P) q, R(t)
// k>: keys turn by one of eight angles a pair, which a lane keeps in registers, and queries once a tile.
#pragma once

#include "kernels/cuda/commvq/common.cuh"
#include "kernels/cuda/commvq/tiles.cuh"
#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/overlapping_launch.h"

namespace kvasir::cuda {

// Keys in float16 fragments are this much smaller than the whole numbers.
constexpr float kKeyScale = 1.0f / 64.0f;

// The low or the high 16 bits of a word as a float, plus 2^23.
__device__ __forceinline__ float low_field(uint32_t word) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7610));
}
__device__ __forceinline__ float high_field(uint32_t word) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7632));
}

// What one lane adds up for one token. 16-bit fields: a word is a pair.
template <int kChunks>
struct KeySums {
  static constexpr int kLanePairs = 4 * kChunks;
  uint32_t plain[kLanePairs], times_i[kLanePairs];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) plain[i] = times_i[i] = 0;
  }
  __device__ __forceinline__ static void add(uint32_t (&sums)[kLanePairs], int chunk, const uint4& x, const uint4& y) {
    sums[4 * chunk] += x.x + y.x;
    sums[4 * chunk + 1] += x.y + y.y;
    sums[4 * chunk + 2] += x.z + y.z;
    sums[4 * chunk + 3] += x.w + y.w;
  }
  __device__ __forceinline__ void add_plain(int chunk, const uint4& x, const uint4& y) { add(plain, chunk, x, y); }
  __device__ __forceinline__ void add_times_i(int chunk, const uint4& x, const uint4& y) { add(times_i, chunk, x, y); }

  // Pair i as a complex number.
  __device__ __forceinline__ float2 pair(int i) const {
    constexpr float kBoth = 16777216.0f + 2.0f * kExactBias;  // of two fields: 2^23 and the bias
    const float re = low_field(plain[i]) - high_field(times_i[i]);
    const float im = high_field(plain[i]) + (low_field(times_i[i]) - kBoth);
    return {re, im};
  }
};

// Codes of one tile, as they are stored and then, two stages in a word, in shared memory: [stages / 2][16 tokens], each
// code as a + 64 b.
struct TileCodes {
  uint32_t words[2][3];  // a lane takes eight tokens of two stages

  __device__ __forceinline__ void load(const CommVqParams& params, const uint8_t* head_codes, int tile, int stages,
                                       int lane) {
    const int bits = params.tables.index_bits;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int stage = lane / 2 * 2 + r;
      if (stage >= stages) break;
      const auto* from = reinterpret_cast<const uint16_t*>(head_codes + stage * params.key_stage_bytes() +
                                                           (2 * tile + lane % 2) * 2 * bits);
      words[r][0] = from[0] | from[1] << 16;
      words[r][1] = from[2] | from[3] << 16;
      words[r][2] = bits > 4 ? from[4] : 0;
      if (bits > 5) words[r][2] |= from[5] << 16;
    }
  }

  __device__ __forceinline__ void expand(const CommVqParams& params, int stages, int lane, uint32_t* codes) const {
    if (lane / 2 * 2 >= stages) return;
    uint32_t first[4], second[4];
    eight_codes(params.tables.index_bits, words[0], first);
    eight_codes(params.tables.index_bits, words[1], second);
    uint32_t both[8];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      both[2 * k] = __byte_perm(first[k], second[k], 0x5410);
      both[2 * k + 1] = __byte_perm(first[k], second[k], 0x7632);
    }
    auto* const to = reinterpret_cast<uint4*>(codes + lane * 8);
    to[0] = {both[0], both[1], both[2], both[3]};
    to[1] = {both[4], both[5], both[6], both[7]};
  }

 private:
  // Two codes in each word.
  __device__ __forceinline__ static void eight_codes(int bits, const uint32_t (&words)[3], uint32_t (&out)[4]) {
    uint32_t w0 = words[0], w1 = words[1], w2 = words[2];
    if (bits == 6) {  // 96 bits, all shifts known
      out[0] = (w0 & 0xfffu) | (w0 << 4 & 0x0fff0000u);
      out[1] = (__funnelshift_r(w0, w1, 24) & 0xfffu) | (w1 << 12 & 0x0fff0000u);
      out[2] = (w1 >> 16 & 0xfffu) | (__funnelshift_r(w1, w2, 12) & 0x0fff0000u);
      out[3] = (w2 >> 8 & 0xfffu) | (w2 >> 4 & 0x0fff0000u);
      return;
    }
    const uint32_t mask = (1u << bits) - 1;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint32_t code = (w0 & mask) | (w0 >> bits & mask) << 6;
      out[k / 2] = k % 2 == 0 ? code : out[k / 2] | code << 16;
      w0 = __funnelshift_r(w0, w1, 2 * bits);
      w1 = __funnelshift_r(w1, w2, 2 * bits);
      w2 >>= 2 * bits;
    }
  }
};

// One warp: all tiles of a range, for kChunks of the kRowChunks chunks of a slice's rows and four query heads.
template <int kRowChunks, int kChunks>
class ScoreWarp {
 public:
  using Sums = KeySums<kChunks>;
  static constexpr int kLanePairs = Sums::kLanePairs;
  static constexpr int kChunkPairs = kLanePairs / kChunks;  // of a lane
  static constexpr int kPairs = 4 * kLanePairs;
  static constexpr int kSlicePairs = kPairs * (kRowChunks / kChunks);
  static constexpr int kRowBytes = kTableChunkBytes * kRowChunks;

  __device__ ScoreWarp(const CommVqParams& params, const uint8_t* slice, const float2* tile_turns, uint32_t* codes,
                       int kv_head, int row_block, int pair_slice, int stage_slice, int column, int lane)
      : params_(params),
        turns_(reinterpret_cast<const double*>(slice) + column * kPairs),
        steps_(reinterpret_cast<const float*>(reinterpret_cast<const double*>(slice) + kSlicePairs) + column * kPairs),
        tile_turns_(tile_turns + column * kPairs),
        table_(shared_address(slice + params.tables.head_bytes()) + column * kChunks * kTableChunkBytes +
               lane % 4 * 16),
        codes_(codes),
        kv_head_(kv_head),
        row_block_(row_block),
        first_pair_(pair_slice * kSlicePairs + column * kPairs),
        first_stage_(stage_slice * params.tables.slice_stages),
        stages_(params.tables.stages_of(stage_slice)),
        slice_((pair_slice * params.tables.stage_slices + stage_slice) * (kRowChunks / kChunks) + column),
        lane_(lane),
        swapped_(kChunks > 1 && lane / 4 % 2 == 1) {
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) {
      const float2 turn = turn_of(lane / 4, turns_[pair_of(swapped_ ? i ^ kChunkPairs : i)]);
      offsets_[i] = {turn.x * kKeyScale, turn.y * kKeyScale};
    }
  }

  __device__ void run(TileCursor& cursor, int64_t first, int64_t end) {
    TileCodes next;
    next.load(params_, codes_of(cursor), cursor.tile, stages_, lane_);
    int known = -1;  // the sequence whose queries are in place
    for (int64_t tile = first; tile < end; ++tile) {
      if (cursor.sequence != known) {
        known = cursor.sequence;
        enter(known);
      }
      __syncwarp();
      next.expand(params_, stages_, lane_, codes_);
      __syncwarp();
      const uint8_t* const page = cursor.data;
      const int page_number = cursor.page, page_tile = cursor.tile;
      if (tile + 1 < end) {
        cursor.advance();
        next.load(params_, codes_of(cursor), cursor.tile, stages_, lane_);
      }
      uint32_t keys[2][kLanePairs];
      decode(lane_ / 4, keys[0]);
      decode(lane_ / 4 + 8, keys[1]);
      const auto* norms = reinterpret_cast<const uint16_t*>(page) + page_tile * kTileSize;
      // Lanes 0 and 1 of four have the scores of token g, lanes 2 and 3 those of token g + 8.
      const int token = lane_ / 4 + (lane_ % 4 >= 2 ? 8 : 0);
      const float norm = halves_to_floats(norms[token]).x;
      const int64_t number = page_token_ + int64_t{page_number} * kPageTokens + page_tile * kTileSize;
      float2 scores = multiply(keys, number);
      if (shifted_) rest_of_shifts(keys, number, token, scores);
      store(tile, token, norm, scores);
    }
  }

 private:
  // Lane pair i of this lane is which pair of the slice.
  __device__ __forceinline__ int pair_of(int i) const {
    return i / kChunkPairs * 4 * kChunkPairs + lane_ % 4 * kChunkPairs + i % kChunkPairs;
  }
  __device__ __forceinline__ const uint8_t* codes_of(const TileCursor& cursor) const {
    return cursor.data + 2 * kPageTokens + kv_head_ * params_.key_head_bytes() +
           first_stage_ * params_.key_stage_bytes();
  }
  // The query head of this lane's column of B: columns 0..3 are the heads at token 0, columns 4..7 at token 8.
  __device__ __forceinline__ int head() const { return row_block_ * 4 + lane_ / 4 % 4; }

  __device__ __forceinline__ float2 query(int i) const {
    const int pair = first_pair_ + pair_of(i);
    if (pair >= params_.tables.head_dim / 2 || head() >= params_.group) return {0.0f, 0.0f};
    const float step = steps_[pair_of(i)];
    return {load_number(params_.queries, params_.type, query_row_ + first_channel(params_, pair)) * step,
            load_number(params_.queries, params_.type, query_row_ + second_channel(params_, pair)) * step};
  }

  __device__ __forceinline__ void enter(int sequence) {
    sequence_ = params_.sequences + sequence;
    page_token_ = sequence_->page_token;
    shifted_ = sequence_->shift_count > 0;
    query_row_ =
        ((int64_t{sequence} * params_.tables.kv_heads + kv_head_) * params_.group + head()) * params_.tables.head_dim;
    // Queries are scaled to 1 at most, which turning does not change by more than the square root of 2.
    float peak = 0.0f;
#pragma unroll 4
    for (int i = 0; i < kLanePairs; ++i) {
      const float2 q = query(i);
      peak = fmaxf(peak, fmaxf(fabsf(q.x), fabsf(q.y)));
    }
    peak = max_over_columns(peak);
    inverse_ = inverse_peak(peak);
    const float scale = peak * params_.scale * (1.0f / kKeyScale);
    // Those of the two heads whose scores this lane will hold: columns 2k and 2k + 1.
    scale_[0] = __shfl_sync(0xffffffffu, scale, lane_ % 4 * 8);
    scale_[1] = __shfl_sync(0xffffffffu, scale, lane_ % 4 * 8 + 4);
    base_ = kUnknown;
  }

  // Key of a token of the tile as float16 pairs, in the order of pair_of, turned by token % 8.
  __device__ __forceinline__ void decode(int token, uint32_t (&key)[kLanePairs]) const {
    Sums sums;
    sums.clear();
    constexpr uint32_t kStageBytes = kEntryStride * kRowBytes;
    const uint32_t swap = swapped_ ? kTableChunkBytes : 0;
    uint32_t even = table_ + swap, odd = table_ - swap;  // for chunks of even and of odd number
    const uint32_t* codes = codes_ + token;
    uint32_t pair = codes[0];
    int s = 0;
#pragma unroll 1
    for (; s + 2 <= stages_; s += 2) {
      const uint32_t first_a = (pair & 63) * kRowBytes, first_b = (pair >> 6 & 63) * kRowBytes;
      const uint32_t second_a = (pair >> 16 & 63) * kRowBytes, second_b = (pair >> 22) * kRowBytes;
      codes += kTileSize;
      if (s + 2 < stages_) pair = codes[0];
      uint4 rows[4][kChunks];  // all on their way before any is waited for
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint32_t base = (c % 2 == 0 ? even : odd) + c * kTableChunkBytes;
        rows[0][c] = load_shared(base + first_a);
        rows[1][c] = load_shared(base + second_a + kStageBytes);
        rows[2][c] = load_shared(base + first_b);
        rows[3][c] = load_shared(base + second_b + kStageBytes);
      }
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        sums.add_plain(c, rows[0][c], rows[1][c]);
        sums.add_times_i(c, rows[2][c], rows[3][c]);
      }
      even += 2 * kStageBytes;
      odd += 2 * kStageBytes;
    }
    if (s < stages_) {
      const uint32_t a = (pair & 63) * kRowBytes, b = (pair >> 6 & 63) * kRowBytes;
      const uint4 nothing = {0, 0, 0, 0};
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint32_t base = (c % 2 == 0 ? even : odd) + c * kTableChunkBytes;
        sums.add_plain(c, load_shared(base + a), nothing);
        sums.add_times_i(c, load_shared(base + b), nothing);
      }
    }
    uint32_t turned[kLanePairs];
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) {
      const float2 z = sums.pair(i);
      const float2 w = offsets_[i];
      turned[i] = floats_to_halves(z.x * w.x - z.y * w.y, z.x * w.y + z.y * w.x);
    }
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) key[i] = swapped_ ? turned[(i ^ kChunkPairs) % kLanePairs] : turned[i];
  }

  // Turns this lane's query back by `position`.
  __device__ __forceinline__ void turn_query(int64_t position) {
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) {
      const float2 q = query(i);
      const float2 w = turn_of(position, turns_[pair_of(i)]);
      query_[i] = {(q.x * w.x + q.y * w.y) * inverse_, (q.y * w.x - q.x * w.y) * inverse_};
    }
  }

  // From one tile to the next.
  __device__ __forceinline__ void advance_query() {
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) {
      const float2 w = tile_turns_[pair_of(i)];
      const float2 q = query_[i];
      query_[i] = {q.x * w.x + q.y * w.y, q.y * w.x - q.x * w.y};
    }
  }

  // Scores of the tile, as if no shift began inside either half of it.
  __device__ __forceinline__ float2 multiply(const uint32_t (&keys)[2][kLanePairs], int64_t number) {
    int64_t position = number + (lane_ / 4 >= 4 ? 8 : 0);
    if (shifted_) position += shift_of(*sequence_, position);
    const bool goes_on = advances_ < kMostAdvances && position == base_ + kTileSize;
    if (__all_sync(0xffffffffu, goes_on)) {
      advance_query();
      ++advances_;
    } else {
      turn_query(position);
      advances_ = 0;
    }
    base_ = position;
    return products(keys);
  }

  __device__ __forceinline__ float2 products(const uint32_t (&keys)[2][kLanePairs]) const {
    float sums[4] = {}, low_sums[4] = {};
#pragma unroll
    for (int i = 0; i < kLanePairs; i += 2) {
      const uint4 a = {keys[0][i], keys[1][i], keys[0][i + 1], keys[1][i + 1]};
      uint32_t high[2], low[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float2 q = query_[i + k];
        high[k] = floats_to_halves(q.x, q.y);
        const float2 rounded = halves_to_floats(high[k]);
        low[k] = floats_to_halves(q.x - rounded.x, q.y - rounded.y);
      }
      mma_halves(sums, a, high[0], high[1]);
      mma_halves(low_sums, a, low[0], low[1]);
    }
    const bool second = lane_ % 4 >= 2;
    return {second ? sums[2] + low_sums[2] : sums[0] + low_sums[0],
            second ? sums[3] + low_sums[3] : sums[1] + low_sums[1]};
  }

  // Where shifts begin inside a half of the tile, tokens after them are computed again.
  __device__ __forceinline__ void rest_of_shifts(const uint32_t (&keys)[2][kLanePairs], int64_t number, int token,
                                                 float2& scores) {
    const int64_t half = number + (lane_ / 4 >= 4 ? 8 : 0);
#pragma unroll 1
    for (int64_t i = 0; i < sequence_->shift_count; ++i) {
      const TokenShift shift = sequence_->shifts[i];
      if (shift.first <= number || shift.first >= number + kTileSize) continue;
      turn_query(half + shift.offset);
      const float2 other = products(keys);
      if (number + token >= shift.first) scores = other;
      base_ = kUnknown;
    }
  }

  __device__ __forceinline__ void store(int64_t tile, int token, float norm, float2 scores) const {
    float* const to = params_.scores + (slice_ * params_.tiles + tile) * params_.query_heads() * kTileSize +
                      static_cast<int64_t>(kv_head_) * params_.group * kTileSize + score_place(token);
    const int head = row_block_ * 4 + lane_ % 2 * 2;
    if (head < params_.group) to[head * kTileSize] = scores.x * (norm * scale_[0]);
    if (head + 1 < params_.group) to[(head + 1) * kTileSize] = scores.y * (norm * scale_[1]);
  }

  static constexpr int64_t kUnknown = INT64_MIN;
  // A turn by a product is wrong by a few 2^-24; so many in a row by 1e-5 at worst, a tenth of what float16 keys lose.
  static constexpr int kMostAdvances = 63;

  const CommVqParams& params_;
  const double* const turns_;
  const float* const steps_;
  const float2* const tile_turns_;
  const uint32_t table_;
  uint32_t* const codes_;
  const int kv_head_, row_block_, first_pair_, first_stage_, stages_, slice_, lane_;
  const bool swapped_;
  float2 offsets_[kLanePairs];  // turns of token g, in the order in which this lane reads rows
  float2 query_[kLanePairs];    // turned back by base_
  float inverse_ = 0.0f;
  float scale_[2] = {};
  int64_t base_ = kUnknown;
  int advances_ = 0;  // since queries were turned afresh
  int64_t query_row_ = 0;
  int64_t page_token_ = 0;
  const CommVqSequence* sequence_ = nullptr;
  bool shifted_ = false;
};

template <int kRowChunks>
__global__ void __launch_bounds__(32 * kScoreWarps, 1) score_kernel(const __grid_constant__ CommVqParams params) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kChunks = kRowChunks < 2 ? kRowChunks : 2;
  constexpr int kColumns = kRowChunks / kChunks;
  using Warp = ScoreWarp<kRowChunks, kChunks>;
  constexpr int kSlicePairs = Warp::kSlicePairs;
  const int warp = warp_index(), lane = threadIdx.x % 32;
  const KeyTableLayout& tables = params.tables;
  auto* const tile_turns = reinterpret_cast<float2*>(shared + tables.slice_bytes());
  auto* const codes =
      reinterpret_cast<uint32_t*>(tile_turns + kSlicePairs) + warp * ((tables.slice_stages + 1) / 2) * kTileSize;
  const auto ready = [&] {
    for (int p = threadIdx.x; p < kSlicePairs; p += blockDim.x) {
      tile_turns[p] = turn_of(kTileSize, reinterpret_cast<const double*>(shared)[p]);
    }
  };
  const auto compute = [&](const WarpTask& task, TileCursor& cursor) {
    Warp(params, shared, tile_turns, codes, task.kv_head, task.row_block, task.part / tables.stage_slices,
         task.part % tables.stage_slices, warp % kColumns, lane)
        .run(cursor, task.first, task.last);
  };
  for_each_task(params, shared, warp / kColumns, kScoreWarps / kColumns, lane, ready, compute);
}

}  // namespace kvasir::cuda
