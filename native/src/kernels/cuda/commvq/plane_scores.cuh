// Scores of CommVQ's keys by planes of bytes (planes.h): tables in shared memory, sums, RoPE and products with
// queries on tensor cores and in float16.
//
// Sums. The rows that codes name are an operand of a product of whole numbers as they are loaded: A of m16n8k32, where
// a lane (g = lane / 4, h = lane % 4) serves token g or g + 8 and every fourth plane. The four words of a block of 16
// bytes, 8 pairs, are the lane's part of A: words 0 and 2 in row g, words 1 and 3 in row g + 8. B is constant: it picks
// each component of a word, columns 0..3 for words 0 and 1 and columns 4..7 for words 2 and 3, and multiplies by
// 2^level; another B turns by i, for rows of b. So one product adds up a look-up in each of 4 planes for 8 tokens and 8
// pairs, and what comes out are two pairs of the lane's token: a part of A again, for the product with queries.
//
// Banks. Odd tokens read block c ^ 2 when even ones read block c (c ^ 1 where blocks do not come in fours). So there
// are two products with queries: one whose blocks are in plain order, good for even tokens, and one in which these
// blocks change places.
//
// Low planes. A stage whose entries need more than a byte has a second plane, of half bytes: a block of 16 bytes is for
// two blocks of 8 pairs, of which the second needs a shift and a mask.
//
// Folded planes. Of one or two planes, lanes h = 0, 1 have look-ups for token g and lanes 2, 3 those for token g + 8.
// Both are operands of the same A, and B is 0 for those that are not of the product's tokens: two products a load
// instead of one.
//
// RoPE. With P the position of a tile's token 0, <q, R(P + t) k> = <R(-P) q, R(t) k>. Keys turn by one of 8 angles a
// pair, which a lane keeps in registers, and queries once a tile. Columns of the product with queries are 4 heads for
// tokens 0..7, and the same heads turned back by 8 more for tokens 8..15. All of it is float16, which costs 1e-7.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/commvq/common.cuh"
#include "kernels/cuda/commvq/plane_codes.cuh"
#include "kernels/cuda/commvq/planes.h"
#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/rounding.h"
#include "kernels/cuda/primitives/uniform.cuh"

namespace kvasir::cuda {

// 16 tokens of a page.
struct TilePlace {
  const uint8_t* page;  // null where there is no such tile
  int number;           // of the page in its sequence
  int tile;             // of the page
};

// d = A (16 x 32, signed bytes) * B (32 x 8, signed bytes) + c. Like load_shared it stays where it is written.
__device__ __forceinline__ void mma_planes(int (&d)[4], const uint4& a, const uint32_t (&b)[2], const int (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// Two complex numbers as float16, and what turns them: cosines and sines.
struct alignas(8) TwoPairs {
  __half2 re, im;

  __device__ __forceinline__ static TwoPairs of(float2 first, float2 second) {
    return {__floats2half2_rn(first.x, second.x), __floats2half2_rn(first.y, second.y)};
  }
  __device__ __forceinline__ TwoPairs turned(const TwoPairs& by) const {
    return {__hfma2(__hneg2(im), by.im, __hmul2(re, by.re)), __hfma2(re, by.im, __hmul2(im, by.re))};
  }
  __device__ __forceinline__ TwoPairs turned_back(const TwoPairs& by) const {
    return {__hfma2(im, by.im, __hmul2(re, by.re)), __hfma2(__hneg2(re), by.im, __hmul2(im, by.re))};
  }
  __device__ __forceinline__ uint2 words() const {
    return {*reinterpret_cast<const uint32_t*>(&re), *reinterpret_cast<const uint32_t*>(&im)};
  }
};

// What a block has in shared memory beside its slice.
struct alignas(16) PlaneTurns {
  TwoPairs keys[kMaxSlicePairs / (2 * kPlaneBlockPairs)][32][2];  // by two blocks, lanes
  float2 half_tile[kMaxSlicePairs];                               // by 8 positions
};
static_assert(sizeof(PlaneTurns) == kTurnBytes, "as planned");

// One warp: scores of tiles, for one slice and four query heads. kBlocks: blocks of 8 pairs, an even number. kFolded:
// folded planes, 0 to 2.
//
//   PlaneScoreWarp<8, 0> warp(...);      a slice in shared memory, see there
//   warp.enter(sequence);              whose queries and positions the next tiles have
//   warp.fetch(place);                 the first tile's codes
//   warp.tile(place, next, sink);      any number of times; the next tile's codes are on their way then. Where `next`
//                                      has an odd number, it is that of the same page after `place`
//
// The sink gets the scores of 16 tokens and 4 heads, as base-2 logarithms: lanes call sink(token, head, scores) with
// the scores of `head` and `head` + 1 of the four.
template <int kBlocks, int kFolded>
class PlaneScoreWarp {
 public:
  // In shared memory: a slice, kZeroBytes of zeros, what make_turns() made, and plane_warp_bytes() of this warp.
  __device__ PlaneScoreWarp(const CommVqParams& params, const uint8_t* slice, const uint8_t* zeros,
                            const PlaneTurns& block_turns, uint8_t* scratch, int kv_head, int row_block, int pair_slice,
                            int planes, int lane)
      : params_(params),
        turns_(reinterpret_cast<const double*>(slice)),
        steps_(reinterpret_cast<const float*>(turns_ + kMaxSlicePairs)),
        query_turns_(reinterpret_cast<TwoPairs*>(scratch)),
        codes_(reinterpret_cast<uint32_t*>(scratch + 4 * kMaxSlicePairs)),
        kv_head_(kv_head),
        row_block_(row_block),
        first_pair_(pair_slice * kMaxSlicePairs),
        rounds_(plane_rounds(planes - kFolded)),
        all_rounds_(rounds_ + plane_rounds(params.tables.low_planes)),
        code_rounds_(all_rounds_ + (kFolded > 0 ? 1 : 0)),
        lane_(lane),
        g_(lane / 4),
        h_(lane % 4),
        next_codes_(params.tables.index_bits,
                    has_plane(params, planes, lane) ? codes_offset(params, kv_head, slice[kPlaneStagesAt + lane]) : -1,
                    has_plane(params, planes, lane) ? slice[kPlaneLevelsAt + lane] : 0),
        block_turns_(block_turns),
        odd_blocks_(g_ % 2 * (-32 * kSwap)) {
    const uint32_t tables = shared_address(slice + params.tables.head_bytes());
    const int first = g_ % 2 * (16 * kSwap);  // block 0, or that which odd tokens begin with
    table_ = tables + plane_offset(h_, kSwap) + first;
    if constexpr (kFolded > 0) table_ += kRoundPlanes * kPlaneBytes;
    const int last = (rounds_ - 1) * kRoundPlanes;
    last_table_ = last + h_ < planes - kFolded
                      ? table_ + last * kPlaneBytes
                      : shared_address(zeros) + plane_offset(h_, kSwap) - h_ * (kPlaneBytes - kPlaneGap) + first;
    low_table_ = tables + params.tables.slice_tables() * kPlaneBytes + low_plane_offset(h_) + g_ % 2 * 16;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) key_turns_[i] = block_turns.keys[i / 2][lane][i % 2];
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

  // What keys and queries of a slice are turned by. The whole block.
  __device__ static void make_turns(const uint8_t* slice, PlaneTurns& made) {
    const auto* turns = reinterpret_cast<const double*>(slice);
    for (int i = threadIdx.x; i < kBlocks * 32; i += blockDim.x) {
      const int lane = i % 32, g = lane / 4, h = lane % 4, k = i / 32 % 2, block = block_of(i / 64, k) ^ g % 2 * kSwap;
      made.keys[i / 64][lane][k] =
          TwoPairs::of(quick_turn(g, turns[pair_of(block, h, 0)]), quick_turn(g, turns[pair_of(block, h, 1)]));
    }
    for (int i = threadIdx.x; i < kBlocks * kPlaneBlockPairs; i += blockDim.x) {
      made.half_tile[i] = quick_turn(kTileSize / 2, turns[i]);
    }
  }

  __device__ __forceinline__ void enter(int sequence) {
    sequence_ = params_.sequences + sequence;
    page_token_ = uniform(sequence_->page_token);
    shifted_ = uniform(sequence_->shift_count) > 0;
    // Queries are scaled to 1 at most, which turning does not change by more than the square root of 2.
    float2 queries[kLanePairs];
    float peak = 0.0f;
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) {
      queries[i] = query(sequence, i);
      peak = fmaxf(peak, fmaxf(fabsf(queries[i].x), fabsf(queries[i].y)));
    }
    peak = max_over_columns(peak);
    const float inverse = inverse_peak(peak);
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) {
      // Columns of tokens 8..15 are turned back by 8 positions.
      const float2 turn = g_ < 4 ? float2{1.0f, 0.0f} : block_turns_.half_tile[pair_of(i / 2, h_, i % 2)];
      const float2 q = {queries[i].x * inverse, queries[i].y * inverse};
      queries[i] = {q.x * turn.x + q.y * turn.y, q.y * turn.x - q.x * turn.y};
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      query_[block] = TwoPairs::of(queries[2 * block], queries[2 * block + 1]);
    }
    const float scale = peak * params_.scale * (1.0f / kKeyScale);
    // Those of the two heads whose scores this lane will hold: columns 2h and 2h + 1.
    scale_[0] = __shfl_sync(0xffffffffu, scale, h_ * 8);
    scale_[1] = __shfl_sync(0xffffffffu, scale, h_ * 8 + 4);
  }

  __device__ __forceinline__ void fetch(const TilePlace& place) { next_codes_.fetch(place.page, place.tile); }

  template <class Sink>
  __device__ __forceinline__ void tile(const TilePlace& place, const TilePlace& next, Sink& sink) {
    __syncwarp();
    if (lane_ < code_rounds_ * kRoundPlanes) {
      next_codes_.expand(place.tile, codes_ + 4 * lane_, codes_ + 4 * lane_ + last_codes(code_rounds_));
    }
    if (next.page != nullptr && next.tile % 2 == 0) fetch(next);
    const int token = g_ + h_ / 2 * 8;
    const auto* norms = reinterpret_cast<const uint16_t*>(place.page) + place.tile * kTileSize;
    const uint16_t half_norm = __ldg(norms + token);
    const int64_t number = page_token_ + int64_t{place.number} * kPageTokens + place.tile * kTileSize;
    int64_t position = shifted_ ? number + shift_of(*sequence_, number) : number;
    float2 scores;
    // Where shifts begin inside the tile, tokens after them are computed again.
    for (int from = 0; from < kTileSize;) {
      turn_queries(position);
      const float2 products = multiply();
      if (token >= from) scores = products;
      from = shifted_ ? next_shift(number, from, position) : kTileSize;
    }
    const float norm = late_float(half_norm);
    sink(token, h_ % 2 * 2, float2{scores.x * (norm * scale_[0]), scores.y * (norm * scale_[1])});
  }

 private:
  static constexpr int kLanePairs = 2 * kBlocks;
  // Blocks whose sums a lane has at a time: codes are read again for each such unit.
  static constexpr int kUnit = kBlocks % 4 == 0 ? 4 : 2;
  static constexpr int kSwap = plane_swap(kBlocks);
  // Keys are this much smaller than the whole numbers, so that float16 holds them.
  static constexpr float kKeyScale = 1.0f / 64.0f;

  // Where the second half of codes begins: in other banks than the first.
  __device__ __forceinline__ static int last_codes(int rounds) { return (rounds | 1) * kRoundPlanes * 4; }

  // The blocks of unit after unit that change places: kSwap apart, `k` is 0 or 1.
  __device__ __forceinline__ static constexpr int block_of(int pair, int k) {
    return kSwap == 2 ? pair / 2 * 4 + pair % 2 + 2 * k : 2 * pair + k;
  }

  // Whether lane `lane` has a plane's codes: folded ones, full rounds of the others, low ones.
  __device__ __forceinline__ static bool has_plane(const CommVqParams& params, int planes, int lane) {
    const int others = planes - kFolded;
    if (lane < kFolded) return true;
    if (kFolded > 0) lane -= kRoundPlanes;
    const int low = lane - plane_rounds(others) * kRoundPlanes;
    return lane >= 0 && (lane < others || (low >= 0 && low < params.tables.low_planes));
  }

  __device__ __forceinline__ static int codes_offset(const CommVqParams& params, int kv_head, int stage) {
    return 2 * kPageTokens + static_cast<int>(kv_head * params.key_head_bytes()) + stage * params.key_stage_bytes();
  }

  // Like load_shared it stays where it is written: a conversion right after the load would wait for it there.
  __device__ __forceinline__ static float late_float(uint16_t half) {
    float number;
    asm volatile("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(half));
    return number;
  }

  // A lane's two pairs of a block.
  __device__ __forceinline__ static int pair_of(int block, int h, int i) {
    return kPlaneBlockPairs * block + h / 2 * 4 + i * 2 + h % 2;
  }

  // The query of this lane's column, head g % 4. Where there is none it reads the first number there is and takes 0 for
  // it, so that all loads of a query are on their way together.
  __device__ __forceinline__ float2 query(int sequence, int i) const {
    const int head = row_block_ * 4 + g_ % 4, in_slice = pair_of(i / 2, h_, i % 2), pair = first_pair_ + in_slice;
    const bool exists = pair < params_.tables.head_dim / 2 && head < params_.group;
    const int64_t row =
        ((int64_t{sequence} * params_.tables.kv_heads + kv_head_) * params_.group + head) * params_.tables.head_dim;
    const float re = load_unbranched(params_.queries, params_.type, exists ? row + first_channel(params_, pair) : 0);
    const float im = load_unbranched(params_.queries, params_.type, exists ? row + second_channel(params_, pair) : 0);
    const float step = steps_[in_slice];
    return {exists ? re * step : 0.0f, exists ? im * step : 0.0f};
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

  // turn_of as good as float16 needs it.
  __device__ __forceinline__ static float2 quick_turn(int64_t position, double turns) {
    const double whole = static_cast<double>(position) * turns;
    float2 turn;
    __sincosf(6.2831853f * static_cast<float>(whole - rint(whole)), &turn.y, &turn.x);
    return turn;
  }

  // What queries are turned back by: a lane computes two pairs for all heads.
  __device__ __forceinline__ void turn_queries(int64_t position) {
    __syncwarp();
    query_turns_[lane_] = TwoPairs::of(quick_turn(position, turns_[pair_of(g_, h_, 0)]),
                                       quick_turn(position, turns_[pair_of(g_, h_, 1)]));
    __syncwarp();
  }

  // Products with this lane's two heads of its token: g, or g + 8 where h is 2 or 3.
  __device__ __forceinline__ float2 multiply() const {
    float plain[4] = {}, swapped[4] = {};
#pragma unroll
    for (int unit = 0; unit < kBlocks; unit += kUnit) {
      int sums[kUnit][2][4];  // of a block: tokens g and g + 8; real and imaginary part of two pairs
      const uint32_t* codes = codes_ + h_ * 4 + g_ % 4 + g_ / 4 * last_codes(code_rounds_);
      Rows rows;
      uint32_t word;
      if constexpr (kFolded == 0) {
        word = *codes;
        load_row(round_table(0) + row_offset<kFirstA>(word), unit, rows.bytes[0]);
        add_round<true>(0, unit, codes, word, rows, sums);
      } else {
        add_folded(unit, codes, word, rows, sums);
      }
#pragma unroll 1
      for (int r = kFolded == 0 ? 1 : 0; r < rounds_; ++r) add_round<false>(r, unit, codes, word, rows, sums);
      if constexpr (kSwap == 2) {
#pragma unroll 1
        for (int r = rounds_; r < all_rounds_; ++r) add_low_round(r, unit, codes, word, rows, sums);
      }
#pragma unroll
      for (int pair = unit / 2; pair < (unit + kUnit) / 2; ++pair) {
        alignas(16) TwoPairs forth[2];
        forth[0] = key_turns_[2 * pair];
        forth[1] = key_turns_[2 * pair + 1];
        uint4 keys[2];
        uint2 queries[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int block = block_of(pair, k);
          keys[k] = turned_keys(sums[block - unit], forth[k]);
          queries[k] = query_[block].turned_back(query_turns_[block * 4 + h_]).words();
        }
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          mma_halves(plain, keys[k], queries[k].x, queries[k].y);
          mma_halves(swapped, keys[k], queries[k ^ 1].x, queries[k ^ 1].y);
        }
      }
    }
    const bool odd = g_ % 2 != 0, second = h_ >= 2;
    const float2 low = odd ? float2{swapped[0], swapped[1]} : float2{plain[0], plain[1]};
    const float2 high = odd ? float2{swapped[2], swapped[3]} : float2{plain[2], plain[3]};
    return second ? high : low;
  }

  // A fragment of A: of a block's sums.
  __device__ __forceinline__ static uint4 turned_keys(const int (&sums)[2][4], const TwoPairs& turns) {
    uint2 keys[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int(&s)[4] = sums[i];
      keys[i] = TwoPairs::of(float2{key_sum(s[0]), key_sum(s[1])}, float2{key_sum(s[2]), key_sum(s[3])})
                    .turned(turns)
                    .words();
    }
    return {keys[0].x, keys[1].x, keys[0].y, keys[1].y};
  }

  __device__ __forceinline__ static float key_sum(int sum) {
    return fmaf(__int_as_float(sum), kKeyScale, -kRoundingBias * kKeyScale);
  }

  // B for rows of a and of b.
  __device__ __forceinline__ void make_picks(int level, uint32_t (&picks)[2][2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      picks[0][half] = plain_[half] << level;
      picks[1][half] = times_i_[half] << level & times_i_mask_;
    }
  }

  // The first products begin a sum. Read as a float it needs no conversion; it stays below 2^22.
  __device__ __forceinline__ static void add_products(bool first, const uint4& a, const uint32_t (&b)[2],
                                                      int (&sum)[4]) {
    constexpr int kBegin[4] = {kRoundingBiasBits, kRoundingBiasBits, kRoundingBiasBits, kRoundingBiasBits};
    if (first) {
      mma_planes(sum, a, b, kBegin);
    } else {
      mma_planes(sum, a, b, sum);
    }
  }

  // Where the codes of two tokens stand in a word of PlaneCodes.
  static constexpr int kFirstA = 0, kFirstB = 6, kSecondA = 16, kSecondB = 22;

  // The row that the code at bit kBit names, in bytes: cut out and multiplied by one mask and one shift.
  template <int kBit>
  __device__ __forceinline__ static uint32_t row_offset(uint32_t codes) {
    constexpr uint32_t kCode = 63u << kBit;
    constexpr int kRowShift = 7;
    static_assert(1 << kRowShift == kPlaneRowBytes);
    return kBit < kRowShift ? (codes & kCode) << (kRowShift - kBit) : (codes & kCode) >> (kBit - kRowShift);
  }

  // Blocks of rows on their way: one row's while those of another are multiplied, or four rows of low planes.
  union Rows {
    uint4 bytes[2][kUnit];
    uint4 low[4][kUnit / 2];
  };

  // This lane's plane of round r.
  __device__ __forceinline__ uint32_t round_table(int r) const {
    return r + 1 == rounds_ ? last_table_ : table_ + r * (kRoundPlanes * kPlaneBytes);
  }
  __device__ __forceinline__ uint32_t low_table(int r) const {
    return low_table_ + (r - rounds_) * (kRoundPlanes / 2 * kPlaneBytes);
  }

  // Codes of the round after r, if there is one.
  __device__ __forceinline__ uint32_t next_word(int r, const uint32_t*& codes) const {
    if (r + 1 < all_rounds_) codes += kRoundPlanes * 4;
    return load_word(codes);
  }

  __device__ __forceinline__ static uint32_t load_word(const uint32_t* from) {
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(shared_address(from)));
    return word;
  }

  // Folded planes. They begin the sums, and the first row of the first round is on its way in the end.
  __device__ __forceinline__ void add_folded(int unit, const uint32_t*& codes, uint32_t& word, Rows& rows,
                                             int (&sums)[kUnit][2][4]) const {
    // Codes of this lane's token. Where there is one plane, the lane's own code comes first.
    uint32_t own = load_word(codes - 4 * h_ + (kFolded == 2 ? h_ % 2 * 4 : 0)) >> h_ / 2 * 16;
    const int level = own >> 12 & 7;
    uint32_t picks[2][2];
    make_picks(level, picks);
    codes += kRoundPlanes * 4;
    word = load_word(codes);
    const uint32_t table = table_ - kRoundPlanes * kPlaneBytes;
    const auto load_next = [&] { load_row(round_table(0) + row_offset<kFirstA>(word), unit, rows.bytes[0]); };
    if constexpr (kFolded == 2) {
      load_row(table + row_offset<kFirstA>(own), unit, rows.bytes[0]);
      load_row(table + row_offset<kFirstB>(own), unit, rows.bytes[1]);
      add_half<true>(rows.bytes[0], picks[0], sums);
      load_next();
      add_half<false>(rows.bytes[1], picks[1], sums);
    } else {
      own >>= h_ % 2 * kFirstB;
      load_row(table + row_offset<kFirstA>(own), unit, rows.bytes[1]);
      load_next();
      add_half<true>(rows.bytes[1], {h_ % 2 == 0 ? picks[0][0] : picks[1][0], h_ % 2 == 0 ? picks[0][1] : picks[1][1]},
                     sums);
    }
  }

  // Look-ups for token g in lanes 0 and 1, and for token g + 8 in the others.
  template <bool kFirst>
  __device__ __forceinline__ void add_half(const uint4 (&blocks)[kUnit], const uint32_t (&picks)[2],
                                           int (&sums)[kUnit][2][4]) const {
#pragma unroll
    for (int token = 0; token < 2; ++token) {
      const bool live = h_ / 2 == token;
      const uint32_t own[2] = {live ? picks[0] : 0, live ? picks[1] : 0};
#pragma unroll
      for (int c = 0; c < kUnit; ++c) add_products(kFirst, blocks[c], own, sums[c][token]);
    }
  }

  // Four planes, one of which this lane serves with its codes for tokens g and g + 8. The first ones begin the sums.
  // The first row is on its way, and that of the next round is in the end.
  template <bool kFirst>
  __device__ __forceinline__ void add_round(int r, int unit, const uint32_t*& codes, uint32_t& word, Rows& rows,
                                            int (&sums)[kUnit][2][4]) const {
    const uint32_t table = round_table(r);
    const uint32_t addresses[4] = {0, table + row_offset<kSecondA>(word), table + row_offset<kFirstB>(word),
                                   table + row_offset<kSecondB>(word)};
    const int level = word >> 12 & 7;
    load_row(addresses[1], unit, rows.bytes[1]);
    word = next_word(r, codes);
    uint32_t picks[2][2];
    make_picks(level, picks);
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // a of both tokens, b of both tokens
      if (k == 1 || k == 2) load_row(addresses[k + 1], unit, rows.bytes[(k + 1) % 2]);
      if (k == 3) {
        if (r + 1 < rounds_) {
          load_row(round_table(r + 1) + row_offset<kFirstA>(word), unit, rows.bytes[0]);
        } else if (kSwap == 2 && r + 1 < all_rounds_) {
          load_low_row(low_table(r + 1) + row_offset<kFirstA>(word), unit, rows.low[0]);
        }
      }
#pragma unroll
      for (int c = 0; c < kUnit; ++c) {
        add_products(kFirst && k < 2, rows.bytes[k % 2][c], picks[k / 2], sums[c][k % 2]);
      }
    }
  }

  __device__ __forceinline__ void load_row(uint32_t address, int unit, uint4 (&blocks)[kUnit]) const {
    const uint32_t addresses[2] = {address, address + odd_blocks_};
#pragma unroll
    for (int c = 0; c < kUnit; ++c) blocks[c] = load_shared(addresses[c / kSwap % 2] + 16 * (unit + c));
  }

  // Four low planes. A block of theirs is for two blocks: for the first as it is, for the second the upper halves of
  // its bytes (planes.h).
  __device__ __forceinline__ void add_low_round(int r, int unit, const uint32_t*& codes, uint32_t& word, Rows& rows,
                                                int (&sums)[kUnit][2][4]) const {
    const uint32_t table = low_table(r);
    load_low_row(table + row_offset<kSecondA>(word), unit, rows.low[1]);
    load_low_row(table + row_offset<kFirstB>(word), unit, rows.low[2]);
    load_low_row(table + row_offset<kSecondB>(word), unit, rows.low[3]);
    word = next_word(r, codes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int c = 0; c < kUnit; ++c) {
        const uint4& two = rows.low[k][c / 2];
        const uint4 second = {upper_halves(two.x), upper_halves(two.y), upper_halves(two.z), upper_halves(two.w)};
        mma_planes(sums[c][k % 2], c % 2 == 0 ? two : second, k < 2 ? plain_ : times_i_, sums[c][k % 2]);
      }
      if (k == 0 && r + 1 < all_rounds_) {
        load_low_row(low_table(r + 1) + row_offset<kFirstA>(word), unit, rows.low[0]);
      }
    }
  }

  __device__ __forceinline__ static uint32_t upper_halves(uint32_t bytes) { return bytes >> kLowBits & 0x0f0f0f0fu; }

  __device__ __forceinline__ void load_low_row(uint32_t address, int unit, uint4 (&blocks)[kUnit / 2]) const {
    const uint32_t addresses[2] = {address, address + odd_blocks_ / 2};
#pragma unroll
    for (int i = 0; i < kUnit / 2; ++i) blocks[i] = load_shared(addresses[i] + 16 * (unit / 2 + i));
  }

  const CommVqParams& params_;
  const double* const turns_;
  const float* const steps_;
  TwoPairs* const query_turns_;  // [blocks][4]
  uint32_t* const codes_;        // [2][planes][4]
  const int kv_head_, row_block_, first_pair_;
  const int rounds_, all_rounds_;  // of four planes, and with low ones
  const int code_rounds_;          // that there are codes for
  const int lane_, g_, h_;
  PlaneCodes next_codes_;
  const PlaneTurns& block_turns_;
  const int odd_blocks_;  // how much further on odd tokens have the second of two blocks that change places
  // Shared memory: this lane's plane of the first and of the last round, and its first low plane.
  uint32_t table_, last_table_, low_table_;
  uint32_t plain_[2], times_i_[2], times_i_mask_;
  TwoPairs query_[kBlocks];
  TwoPairs key_turns_[kBlocks];
  float scale_[2] = {};
  int64_t page_token_ = 0;
  const CommVqSequence* sequence_ = nullptr;
  bool shifted_ = false;
};

}  // namespace kvasir::cuda
