// Scores of CommVQ's keys by planes of bytes (commvq_planes.h): tables in shared memory, sums, RoPE and products with
// queries on tensor cores and in float16.
//
// Sums. The rows that codes name are an operand of a product of whole numbers as they are loaded: A of m16n8k32, where
// a lane (g = lane / 4, h = lane % 4) serves token g or g + 8 and every fourth plane. The four words of a block of 16
// bytes, 8 pairs, are the lane's part of A: words 0 and 2 in row g, words 1 and 3 in row g + 8. B is constant: it picks
// each component of a word, columns 0..3 for words 0 and 1 and columns 4..7 for words 2 and 3, and multiplies by
// 2^level; another B turns by i, for rows of b. So one product adds up a look-up in each of 4 planes for 8 tokens and 8
// pairs, and what comes out are two pairs of the lane's token: a part of A again, for the product with queries.
//
// Banks. Odd tokens read block c ^ 1 when even ones read block c, so columns of the product with queries are 4 heads
// with block c, for even tokens, and the same heads with block c ^ 1.
//
// RoPE. With P the position of a tile's token 0, <q, R(P + t) k> = <R(-P) q, R(t) k>: keys turn by one of 16 angles a
// pair, a table of 4 KB, and queries once a tile. All of it is float16, which costs 1e-7.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/commvq_common.cuh"
#include "kernels/cuda/commvq_planes.h"

namespace kvasir::cuda {

// 16 tokens of a page.
struct TilePlace {
  const uint8_t* page;  // null where there is no such tile
  int number;           // of the page in its sequence
  int tile;             // of the page
};

// c += A (16 x 32, signed bytes) * B (32 x 8, signed bytes). Like load_shared it stays where it is written.
__device__ __forceinline__ void mma_planes(int (&c)[4], const uint4& a, const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));
}

// z * w and z * conjugate(w) for z = (re, im) and w = (cos, sin).
__device__ __forceinline__ uint32_t turned(__half2 z, __half2 i_z, __half2 w) {
  const __half2 sum = __hfma2(z, __low2half2(w), __hmul2(i_z, __high2half2(w)));
  return *reinterpret_cast<const uint32_t*>(&sum);
}
__device__ __forceinline__ __half2 halves(uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }

// Codes of two tiles, which begin at an even one: lane p takes those of plane p. Stages lie far apart, so that what
// counts is how many loads there are, not how many bytes.
class PlaneCodes {
 public:
  // `stage` and `level` of this lane's plane; a negative stage if it has none.
  __device__ PlaneCodes(int index_bits, int stage, int level) : bits_(index_bits), stage_(stage), level_(level) {}

  __device__ __forceinline__ void fetch(const uint8_t* head_codes, int stage_bytes, int tile) {
    if (stage_ < 0) return;
    const uint8_t* from = head_codes + stage_ * stage_bytes + tile / 2 * (8 * bits_);
    if (bits_ == 6) {
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(from) + i);
        words_[4 * i] = four.x;
        words_[4 * i + 1] = four.y;
        words_[4 * i + 2] = four.z;
        words_[4 * i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 10; ++i) {
        if (i < 2 * bits_) words_[i] = __ldg(reinterpret_cast<const uint32_t*>(from) + i);
      }
    }
  }

  // Those of one tile to shared memory: [planes][8] words of tokens k and k + 8, each of which is a + 64 b + 4096
  // level.
  __device__ __forceinline__ void expand(int tile, uint32_t* to) const {
    const bool odd = tile % 2 != 0;
    uint32_t first[3], second[3];  // tokens 0..7 and 8..15
    uint32_t both[8] = {};
    if (bits_ == 6) {
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        first[i] = odd ? words_[i + 6] : words_[i];
        second[i] = odd ? words_[i + 9] : words_[i + 3];
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int word = 12 * k / 32, shift = 12 * k % 32;
        const uint32_t x = __funnelshift_r(first[word], first[min(word + 1, 2)], shift);
        const uint32_t y = __funnelshift_r(second[word], second[min(word + 1, 2)], shift);
        both[k] = __byte_perm(x, y, 0x5410) & 0x0fff0fffu;
      }
    } else {
      const uint32_t mask = (1u << bits_) - 1;
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        first[i] = bits_ == 5 ? (odd ? words_[i + 5] : words_[i]) : odd ? words_[i + 4] : words_[i];
        const uint32_t low = odd ? words_[i + 7] : words_[i + 2], high = odd ? words_[i + 8] : words_[i + 3];
        second[i] = bits_ == 5 ? __funnelshift_r(low, high, 16) : odd ? words_[i + 6] : words_[i + 2];
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const uint32_t pair = __byte_perm(first[0], second[0], 0x5410);
        both[k] = (pair & (mask | mask << 16)) | (pair >> bits_ & (mask | mask << 16)) << 6;
        next(first);
        next(second);
      }
    }
    const uint32_t levels = stage_ < 0 ? 0 : level_ << 12 | level_ << 28;
#pragma unroll
    for (int k = 0; k < 8; ++k) both[k] = stage_ < 0 ? 0 : both[k] | levels;
    auto* const out = reinterpret_cast<uint4*>(to);
    out[0] = {both[0], both[1], both[2], both[3]};
    out[1] = {both[4], both[5], both[6], both[7]};
  }

 private:
  __device__ __forceinline__ void next(uint32_t (&words)[3]) const {
    words[0] = __funnelshift_r(words[0], words[1], 2 * bits_);
    words[1] = __funnelshift_r(words[1], words[2], 2 * bits_);
    words[2] >>= 2 * bits_;
  }

  const int bits_, stage_, level_;
  uint32_t words_[12] = {};
};

// One warp: scores of tiles, for one slice and four query heads. kBlocks: blocks of 8 pairs, an even number.
//
//   PlaneScoreWarp<8> warp(...);       a slice in shared memory, see there
//   warp.enter(sequence);              whose queries and positions the next tiles have
//   warp.fetch(place);                 the first tile's codes
//   warp.tile(place, next, sink);      any number of times; the next tile's codes are on their way then. Where `next`
//                                      has an odd number, it is that of the same page after `place`
//
// The sink gets the scores of 16 tokens and 4 heads, as base-2 logarithms: lanes that hold any call
// sink(token, head, scores) for two tokens each, with the scores of `head` and `head` + 1 of the four.
template <int kBlocks>
class PlaneScoreWarp {
 public:
  // In shared memory: a slice, what keys turn by, a row of zeros, and plane_warp_bytes() of this warp.
  __device__ PlaneScoreWarp(const CommVqParams& params, const uint8_t* slice, const uint4* key_turns,
                            const uint8_t* zeros, uint8_t* scratch, int kv_head, int row_block, int pair_slice,
                            int planes, int lane)
      : params_(params),
        turns_(reinterpret_cast<const double*>(slice)),
        steps_(reinterpret_cast<const float*>(turns_ + kMaxSlicePairs)),
        query_turns_(reinterpret_cast<uint2*>(scratch)),
        codes_(reinterpret_cast<uint32_t*>(scratch + 4 * kMaxSlicePairs)),
        kv_head_(kv_head),
        row_block_(row_block),
        first_pair_(pair_slice * kMaxSlicePairs),
        rounds_(plane_rounds(planes)),
        lane_(lane),
        g_(lane / 4),
        h_(lane % 4),
        next_codes_(params.tables.index_bits, lane < planes ? slice[kPlaneStagesAt + lane] : -1,
                    lane < planes ? slice[kPlaneLevelsAt + lane] : 0),
        key_turns_(shared_address(key_turns + lane)) {
    const uint32_t place = 16 * (g_ % 2 ^ 2 * h_);
    table_ = shared_address(slice + params.tables.head_bytes()) + h_ * kPlaneBytes + place;
    const int last = (rounds_ - 1) * kRoundPlanes;
    last_table_ = last + h_ < planes ? table_ + last * kPlaneBytes : shared_address(zeros) + place;
    // Row k of B is a byte of this lane's look-ups, column g the component that it goes to.
    const int component = g_ % 4, other = component ^ 1;
    const uint32_t plain = 1u << 8 * component;
    times_i_mask_ = 0xffu << 8 * other;
    const uint32_t times_i = component % 2 == 0 ? times_i_mask_ : 1u << 8 * other;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      plain_[half] = g_ / 4 == half ? plain : 0;
      times_i_[half] = g_ / 4 == half ? times_i : 0;
    }
  }

  // What keys of a slice are turned by, [kBlocks][32 lanes] in shared memory: tokens g and g + 8, two pairs each. The
  // whole block.
  __device__ static void make_key_turns(const uint8_t* slice, uint4* key_turns) {
    const auto* turns = reinterpret_cast<const double*>(slice);
    for (int i = threadIdx.x; i < kBlocks * 32; i += blockDim.x) {
      const int block = i / 32, g = i % 32 / 4, h = i % 4;
      uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 turn = turn_of(g + k / 2 * 8, turns[pair_of(block ^ g % 2, h, k % 2)]);
        words[k] = floats_to_halves(turn.x, turn.y);
      }
      key_turns[i] = {words[0], words[1], words[2], words[3]};
    }
  }

  __device__ __forceinline__ void enter(int sequence) {
    sequence_ = params_.sequences + sequence;
    page_token_ = sequence_->page_token;
    shifted_ = sequence_->shift_count > 0;
    // Queries are scaled to 1 at most, which turning does not change by more than the square root of 2. They are read
    // twice rather than kept: this is done once a sequence, and registers are what the loop over tiles is short of.
    float peak = 0.0f;
#pragma unroll 1
    for (int i = 0; i < kLanePairs; ++i) {
      const float2 q = query(sequence, i);
      peak = fmaxf(peak, fmaxf(fabsf(q.x), fabsf(q.y)));
    }
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
    const float inverse = peak > 1e-30f ? 1.0f / peak : 0.0f;
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) {
      const float2 q = query(sequence, i);
      query_[i] = floats_to_halves(q.x * inverse, q.y * inverse);
    }
    const float scale = peak * params_.scale * (1.0f / kKeyScale);
    // Those of the two heads whose scores this lane will hold: columns 2h and 2h + 1.
    scale_[0] = __shfl_sync(0xffffffffu, scale, h_ * 8);
    scale_[1] = __shfl_sync(0xffffffffu, scale, h_ * 8 + 4);
  }

  __device__ __forceinline__ void fetch(const TilePlace& place) {
    next_codes_.fetch(place.page + 2 * kTokensPerPage + kv_head_ * params_.key_head_bytes(), params_.key_stage_bytes(),
                      place.tile);
  }

  template <class Sink>
  __device__ __forceinline__ void tile(const TilePlace& place, const TilePlace& next, Sink& sink) {
    __syncwarp();
    if (lane_ < rounds_ * kRoundPlanes) next_codes_.expand(place.tile, codes_ + 8 * lane_);
    if (next.page != nullptr && next.tile % 2 == 0) fetch(next);
    const auto* norms = reinterpret_cast<const uint16_t*>(place.page) + place.tile * kTileSize + g_;
    const float first_norm = halves_to_floats(__ldg(norms)).x, second_norm = halves_to_floats(__ldg(norms + 8)).x;
    const int64_t number = page_token_ + int64_t{place.number} * kTokensPerPage + place.tile * kTileSize;
    int64_t position = shifted_ ? number + shift_of(*sequence_, number) : number;
    float scores[4];
    // Where shifts begin inside the tile, tokens after them are computed again.
    for (int from = 0; from < kTileSize;) {
      turn_queries(position);
      float sums[4] = {};
      multiply(sums);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (g_ + i / 2 * 8 >= from) scores[i] = sums[i];
      }
      from = shifted_ ? next_shift(number, from, position) : kTileSize;
    }
    if (h_ / 2 != g_ % 2) return;
    const int head = h_ % 2 * 2;
    sink(g_, head, float2{scores[0] * (first_norm * scale_[0]), scores[1] * (first_norm * scale_[1])});
    sink(g_ + 8, head, float2{scores[2] * (second_norm * scale_[0]), scores[3] * (second_norm * scale_[1])});
  }

 private:
  static constexpr int kLanePairs = 2 * kBlocks;
  // Blocks whose sums a lane has at a time: codes are read again for each such unit.
  static constexpr int kUnit = kBlocks % 4 == 0 ? 4 : 2;
  // Sums begin at what reads as 1.5 * 2^23 as a float, so that they need no conversion; they stay below 2^22.
  static constexpr int kMagic = 0x4b400000;
  // Keys are this much smaller than the whole numbers, so that float16 holds them.
  static constexpr float kKeyScale = 1.0f / 64.0f;

  // A lane's two pairs of a block.
  __device__ __forceinline__ static int pair_of(int block, int h, int i) {
    return kPlaneBlockPairs * block + h / 2 * 4 + i * 2 + h % 2;
  }

  // Of this lane's column: head g % 4, blocks in the order of tokens of parity g / 4.
  __device__ __forceinline__ float2 query(int sequence, int i) const {
    const int head = row_block_ * 4 + g_ % 4, in_slice = pair_of(i / 2 ^ g_ / 4, h_, i % 2);
    const int pair = first_pair_ + in_slice;
    if (pair >= params_.tables.head_dim / 2 || head >= params_.group) return {0.0f, 0.0f};
    const int64_t row =
        ((int64_t{sequence} * params_.tables.kv_heads + kv_head_) * params_.group + head) * params_.tables.head_dim;
    const float step = steps_[in_slice];
    return {load_number(params_.queries, params_.type, row + first_channel(params_, pair)) * step,
            load_number(params_.queries, params_.type, row + second_channel(params_, pair)) * step};
  }

  // The first shift after token `from` of the tile that begins in it, and the position that token 0 would then have;
  // kTileSize if there is none.
  __device__ __forceinline__ int next_shift(int64_t number, int from, int64_t& position) const {
#pragma unroll 1
    for (int64_t i = 0; i < sequence_->shift_count; ++i) {
      const TokenShift shift = sequence_->shifts[i];
      if (shift.first <= number + from) continue;
      if (shift.first >= number + kTileSize) break;
      position = number + shift.offset;
      return static_cast<int>(shift.first - number);
    }
    return kTileSize;
  }

  // What queries are turned back by: a lane computes two pairs for all heads.
  __device__ __forceinline__ void turn_queries(int64_t position) {
    __syncwarp();
    uint32_t words[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const double whole = static_cast<double>(position) * turns_[pair_of(g_, h_, i)];
      float sine, cosine;
      __sincosf(6.2831853f * static_cast<float>(whole - rint(whole)), &sine, &cosine);
      words[i] = floats_to_halves(cosine, sine);
    }
    query_turns_[lane_] = {words[0], words[1]};
    __syncwarp();
  }

  __device__ __forceinline__ void multiply(float (&scores)[4]) const {
#pragma unroll
    for (int unit = 0; unit < kBlocks; unit += kUnit) {
      int sums[kUnit][2][4];  // of a block: tokens g and g + 8; real and imaginary part of two pairs
#pragma unroll
      for (int i = 0; i < kUnit * 8; ++i) sums[i / 8][i / 4 % 2][i % 4] = kMagic;
      const uint32_t* codes = codes_ + h_ * 8 + g_;
      uint32_t table = table_;
      int left = rounds_;
#pragma unroll 1
      do {
        add_round(*codes, --left == 0 ? last_table_ : table, unit, sums);
        codes += kRoundPlanes * 8;
        table += kRoundPlanes * kPlaneBytes;
      } while (left > 0);
#pragma unroll
      for (int c = 0; c < kUnit; ++c) {
        const int block = unit + c;
        const uint4 four = load_shared(key_turns_ + block * 512);
        const uint32_t turns[4] = {four.x, four.y, four.z, four.w};
        uint32_t keys[2][2];  // by token, pair
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float re = from_magic(sums[c][i / 2][i % 2 * 2]), im = from_magic(sums[c][i / 2][i % 2 * 2 + 1]);
          keys[i / 2][i % 2] =
              turned(halves(floats_to_halves(re, im)), halves(floats_to_halves(-im, re)), halves(turns[i]));
        }
        const uint2 back = query_turns_[(block ^ g_ / 4) * 4 + h_];
        uint32_t queries[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t q = query_[2 * block + i];
          // (im, -re): the query times -i.
          queries[i] =
              turned(halves(q), halves(__byte_perm(q, 0, 0x1032) ^ 0x80000000u), halves(i == 0 ? back.x : back.y));
        }
        mma_halves(scores, {keys[0][0], keys[1][0], keys[0][1], keys[1][1]}, queries[0], queries[1]);
      }
    }
  }

  __device__ __forceinline__ static float from_magic(int sum) {
    return fmaf(__int_as_float(sum), kKeyScale, -12582912.0f * kKeyScale);
  }

  // Four planes, one of which this lane serves with its codes for tokens g and g + 8.
  __device__ __forceinline__ void add_round(uint32_t codes, uint32_t table, int unit, int (&sums)[kUnit][2][4]) const {
    const uint32_t addresses[4] = {table + ((codes & 63) << 7), table + ((codes & 63 << 16) >> 9),
                                   table + ((codes & 63 << 6) << 1), table + ((codes & 63 << 22) >> 15)};
    const int level = codes >> 12 & 7;
    uint4 rows[2][kUnit];  // one row's blocks are on their way while those of another are multiplied
    load_row(addresses[0], unit, rows[0]);
    uint32_t picks[2][2];  // B for rows of a and of b
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      picks[0][half] = plain_[half] << level;
      picks[1][half] = times_i_[half] << level & times_i_mask_;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // a of both tokens, b of both tokens
      if (k < 3) load_row(addresses[k + 1], unit, rows[(k + 1) % 2]);
#pragma unroll
      for (int c = 0; c < kUnit; ++c) mma_planes(sums[c][k % 2], rows[k % 2][c], picks[k / 2]);
    }
  }

  __device__ __forceinline__ static void load_row(uint32_t address, int unit, uint4 (&blocks)[kUnit]) {
#pragma unroll
    for (int c = 0; c < kUnit; ++c) blocks[c] = load_shared(address ^ 16 * (unit + c));
  }

  const CommVqParams& params_;
  const double* const turns_;
  const float* const steps_;
  uint2* const query_turns_;  // [blocks][4]: of two pairs
  uint32_t* const codes_;
  const int kv_head_, row_block_, first_pair_, rounds_, lane_, g_, h_;
  PlaneCodes next_codes_;
  const uint32_t key_turns_;     // shared memory: this lane's of the first block
  uint32_t table_, last_table_;  // shared memory: this lane's plane of the first and of the last round
  uint32_t plain_[2], times_i_[2], times_i_mask_;
  uint32_t query_[kLanePairs] = {};
  float scale_[2] = {};
  int64_t page_token_ = 0;
  const CommVqSequence* sequence_ = nullptr;
  bool shifted_ = false;
};

}  // namespace kvasir::cuda
