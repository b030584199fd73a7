// What one warp computes of attention over spectral pages: scores, softmax and sums of its pages and row tiles.
//
// A lane (g = lane / 4, h = lane % 4) holds head h: of the scores of a page those of half g / 4, tokens 4 (g % 4) up to
// 4 (g % 4) + 3 of every sixteen. Scores are base-2 logarithms. Products are those of bytes, as in
// attend/folded_factors.cuh: steps fold into the coefficients of queries, norms of values into weights; each such
// factor is two bytes, which stand together in shared memory, by head. A lane reads those of four columns or tokens as
// they stand, and its B fragment is the high bytes where g is even, else the low ones.
//
// Fragments of codes are words of the page. Of keys a word has four columns of a token; of values four tokens of a
// column, and tokens are multiplied in whatever order the words have them, weights alike. What a byte has above the
// codes that are wanted is masked, but a code in its upper half stays there, 16 times as great: shifts would cost as
// much as all products.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/attend/folded_factors.cuh"
#include "kernels/cuda/primitives/softmax.cuh"
#include "kernels/cuda/spectral/columns.cuh"
#include "kernels/cuda/spectral/fetch.cuh"

namespace kvasir::cuda {

template <int D>
class SpectralWarp {
 public:
  // room: warp_room(D) bytes. queries: [D][4]; terms: the same, by place_of.
  __device__ SpectralWarp(const SpectralParams& params, const float* queries, const float* terms, float scale,
                          uint8_t* room, int lane)
      : params_(params),
        queries_(queries + lane % 4),
        terms_(terms),
        scale_(scale),
        sums_(reinterpret_cast<float*>(room)),
        factors_(room + sums_bytes(D)),
        factor_bytes_(factor_bytes(params.columns)),
        lane_(lane),
        g_(lane / 4),
        h_(lane % 4) {
#pragma unroll
    for (int i = 0; i < D / 8; ++i) sums_[32 * i + lane] = 0.0f;
  }

  __device__ __forceinline__ void page(SpectralFetcher& fetcher, int hidden) {
    float scores[16];
    const uint8_t* const keys = fetcher.acquire_keys();
    key_scores(keys, scores);
    fetcher.release_keys();
    if (hidden > 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (token(i) < hidden) scores[i] = kHidden;
      }
    }
    const Joining joining = softmax_step(scores, highest_, sum_);
    value_sums(fetcher.acquire_values(), scores, joining);
    fetcher.release_values();
  }

  // A row tile, of which tokens begin .. end - 1 are visible. After all pages.
  __device__ __forceinline__ void rows(const uint8_t* tile, int begin, int end) {
    const auto* groups = reinterpret_cast<const uint4*>(tile) + lane_;
    float products[4] = {};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      mma_halves(products, __ldg(groups + 32 * i), split_halves(queries_[4 * (16 * i + g_)]),
                 split_halves(queries_[4 * (16 * i + 8 + g_)]));
    }
    float scores[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool visible = 8 * i + g_ >= begin && 8 * i + g_ < end;
      scores[i] = visible ? (products[2 * i] + products[2 * i + 1]) * scale_ : kHidden;
    }
    const Joining joining = softmax_step(scores, highest_, sum_);
    const uint32_t low = split_halves(scores[0]), high = split_halves(scores[1]);
#pragma unroll
    for (int i = 0; i < D / 8; ++i) sums_[32 * i + lane_] *= joining.keep;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      float sums[4] = {};
      mma_halves(sums, __ldg(groups + 32 * (D / 16 + i)), low, high);
      output_[2 * i] = fmaf(output_[2 * i], joining.keep, (sums[0] + sums[1]) * joining.gain);
      output_[2 * i + 1] = fmaf(output_[2 * i + 1], joining.keep, (sums[2] + sums[3]) * joining.gain);
    }
  }

  // Writes the state of all four heads. `state` is not in the room.
  __device__ __forceinline__ void write(float* state) {
    float* const head = state + h_ * state_floats(D);
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      head[8 * i + g_] = sums_[4 * place_of<D>(8 * i + g_) + h_];
      head[D + 8 * i + g_] = output_[i];
    }
    const float sum = sum_over_rows(sum_);
    if (g_ == 0) {
      head[2 * D] = highest_;
      head[2 * D + 1] = sum;
    }
  }

 private:
  // Odd tiles of keys' products are 2^kOddBits times as great; where columns are many, sums have no room for that.
  static constexpr int kOddBits = D <= 128 ? 4 : 0;
  static constexpr int kLaneCount = LaneChannels<D>::kCount;

  // Of the lane's score i.
  __device__ __forceinline__ int token(int i) const { return 64 * (g_ / 4) + 16 * (i / 4) + 4 * (g_ % 4) + i % 4; }

  __device__ __forceinline__ void key_scores(const uint8_t* head, float (&scores)[16]) {
    __syncwarp();  // the room was read
#pragma unroll 2
    for (int at = 16 * lane_; at < factor_bytes_; at += 512) {
      *reinterpret_cast<uint4*>(factors_ + at) = make_uint4(kNoFactors, kNoFactors, kNoFactors, kNoFactors);
    }
    uint8_t* const norms = factors_ + factor_bytes_;
    put_norms(head + params_.layouts[0].norms, norms);
    const LaneChannels<D> own(head, params_.layouts[0], lane_);
    float peak = 0.0f, zero = 0.0f;
    put_factors(own, peak, zero);
    __syncwarp();
    int products[8][4] = {};
    const uint8_t* const codes = head + params_.layouts[0].codes;
    add_keys<4>(codes, own.planes, 0, products);
    add_keys<2>(codes, own.planes, 1, products);
    add_keys<1>(codes, own.planes, 2, products);
    const float even = peak * (scale_ / kQuantum<true>), odd = even * (1.0f / (1 << kOddBits));
    zero *= scale_;
    float of_tokens[16];
    get_norms(norms, of_tokens);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float product = joined(products[i / 2][2 * (i % 2)], products[i / 2][2 * (i % 2) + 1]);
      scores[i] = fmaf(product, i / 4 % 2 == 0 ? even : odd, zero) * of_tokens[i];
    }
  }

  // Factors of all columns, for all heads. Leaves, for the lane's head, their peak and what codes of 0 make.
  __device__ __forceinline__ void put_factors(const LaneChannels<D>& own, float& own_peak, float& own_zero) {
    float factor[kLaneCount][4], peak[4], zero[4] = {};
#pragma unroll
    for (int h = 0; h < 4; ++h) peak[h] = kLeastPeak;
#pragma unroll
    for (int j = 0; j < kLaneCount; ++j) {
      const float4 four = *reinterpret_cast<const float4*>(terms_ + 4 * place_of<D>(lane_, j));
      const float of[4] = {four.x, four.y, four.z, four.w};
      const float step = own.used(j) ? own.step[j] : 0.0f;
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        factor[j][h] = of[h] * step;
        zero[h] = fmaf(of[h], own.low[j], zero[h]);
        peak[h] = fmaxf(peak[h], fabsf(factor[j][h]));
      }
    }
    own_zero = sum_of_own(zero);
    __syncwarp();  // there are no factors yet
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      // Bits of positive floats are in the order of the floats.
      const float greatest = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(peak[h])));
      own_peak = h == h_ ? greatest : own_peak;
      const float inverse = kQuantum<true> * reciprocal(greatest);
#pragma unroll
      for (int j = 0; j < kLaneCount; ++j) {
        if (own.used(j)) put_factor(h, own.column[j], factor[j][h], inverse);
      }
      if (own.planes.wide == 0) continue;
#pragma unroll
      for (int j = 0; j < kLaneCount; ++j) {
        if (own.wide(j)) put_factor(h, own.low_digit(j), factor[j][h], inverse * 0.0625f);
      }
    }
  }

  // A product of at most kQuantum<true>, rounded, as two bytes: 128 more than it is, for the low byte to be a signed
  // one when its top bit is flipped. Columns that a plane is padded with multiply whatever lies there by 0.
  static constexpr uint32_t kNoFactors = 0x00800080u;  // two of 0
  __device__ __forceinline__ void put_factor(int h, int column, float factor, float scale) {
    const uint32_t bits = __float_as_uint(fmaf(factor, scale, kRoundingBias + 128.0f));
    uint8_t* const of_heads = factors_ + column / 32 * (4 * kFactorStride) + 2 * (column % 32);
    *reinterpret_cast<uint16_t*>(of_heads + h * kFactorStride) = static_cast<uint16_t>(bits);
  }

  // The sum over the warp of one of four numbers: that of the lane's head.
  __device__ __forceinline__ float sum_of_own(const float (&of)[4]) const {
    float pair[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float given = h_ % 2 == 0 ? of[2 * i + 1] : of[2 * i];
      pair[i] = (h_ % 2 == 0 ? of[2 * i] : of[2 * i + 1]) + __shfl_xor_sync(0xffffffffu, given, 1);
    }
    const float given = h_ < 2 ? pair[1] : pair[0];
    return sum_over_rows((h_ < 2 ? pair[0] : pair[1]) + __shfl_xor_sync(0xffffffffu, given, 2));
  }

  // Norms as floats: each lane makes those of four tokens, and row g has the 16 that lanes of this g want.
  __device__ __forceinline__ void put_norms(const uint8_t* norms, uint8_t* rows) const {
    const uint32_t four = *reinterpret_cast<const uint32_t*>(norms + 4 * lane_);
    const int row = 4 * (lane_ / 16) + h_, quad = g_ % 4;
    *reinterpret_cast<float4*>(rows + row * kNormStride + 16 * quad) =
        make_float4(eighths(four, 0, spectral::kNormBias), eighths(four, 1, spectral::kNormBias),
                    eighths(four, 2, spectral::kNormBias), eighths(four, 3, spectral::kNormBias));
  }
  __device__ __forceinline__ void get_norms(const uint8_t* rows, float (&norms)[16]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(rows + g_ * kNormStride + 16 * i);
      norms[4 * i] = four.x, norms[4 * i + 1] = four.y, norms[4 * i + 2] = four.z, norms[4 * i + 3] = four.w;
    }
  }

  // Of two bytes for each of four columns or tokens the high ones, or the low ones.
  __device__ __forceinline__ uint32_t own_bytes(uint32_t first, uint32_t second) const {
    return __byte_perm(first, second, g_ % 2 == 0 ? 0x7531 : 0x6420);
  }

  // Columns of one width, 32 at a time, times all tokens; sixteen where there are no more. A lane takes four words,
  // tokens that follow each other, of a vector; rows of a product are tokens of both halves of the page.
  template <int kBits>
  __device__ __forceinline__ void add_keys(const uint8_t* codes, const ColumnPlanes& planes, int plane,
                                           int (&products)[8][4]) const {
    const int count = planes.count[plane];
    const uint8_t* factors =
        factors_ + planes.first(plane) / 32 * (4 * kFactorStride) + g_ / 2 * kFactorStride + 8 * h_;
    // Of one bit, words have both halves.
    const int half = kBits == 1 ? 0 : g_ / 4 * (8 * kBits) * count;
    const uint8_t* at = codes + planes.offset(plane) + half + 64 * h_ + 16 * (g_ % 4);
    int left = count;
#pragma unroll 1
    for (; left > 16; left -= 32) {
      add_step<kBits, true>(factors, at, 16 * count, products);
      factors += 4 * kFactorStride;
      at += 512;
    }
    if (left > 0) add_step<kBits, false>(factors, at, 16 * count, products);
  }

  // 32 columns, or 16. Words of the same columns and other tokens are `block_bytes` apart.
  template <int kBits, bool kFull>
  __device__ __forceinline__ void add_step(const uint8_t* factors, const uint8_t* at, int block_bytes,
                                           int (&products)[8][4]) const {
    constexpr int kParts = kBits == 1 ? 4 : 8 / kBits;  // tiles of tokens that the lane has in a word
    constexpr int kWords = kFull ? 8 : 4;
    const uint32_t flip = g_ % 2 == 0 ? 0u : 0x80808080u;
    const uint2 low = *reinterpret_cast<const uint2*>(factors);
    const uint2 high = kFull ? *reinterpret_cast<const uint2*>(factors + 32) : make_uint2(0, 0);
    const uint32_t b0 = own_bytes(low.x, low.y) ^ flip, b1 = own_bytes(high.x, high.y) ^ flip;
#pragma unroll
    for (int block = 0; block < 4 / kParts; ++block) {
      uint32_t words[8];
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(at + block * block_bytes + 64 * i);
        words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
      }
      if constexpr (kBits == 1) {
#pragma unroll
        for (int i = 0; i < kWords; ++i) words[i] >>= 4 * (g_ / 4);
      }
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        if (kBits == 2 && p == 2) {
#pragma unroll
          for (int i = 0; i < kWords; ++i) words[i] >>= 4;
        }
        uint32_t codes[8];
#pragma unroll
        for (int i = 0; i < kWords; ++i) codes[i] = part<kBits>(words[i], kBits == 2 ? p % 2 : p);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          int(&to)[4] = products[2 * (block * kParts + p) + i];
          if constexpr (kFull) {
            const uint32_t a[4] = {codes[2 * i], codes[2 * i + 1], codes[2 * i + 4], codes[2 * i + 5]};
            mma_bytes<true>(to, a, b0, b1);
          } else {
            mma_signed_bytes(to, codes[2 * i], codes[2 * i + 1], b0);
          }
        }
      }
    }
  }

  // Codes of tile p of a word of keys; of an odd one in the upper bits.
  template <int kBits>
  __device__ __forceinline__ static uint32_t part(uint32_t word, int p) {
    const int to = p % 2 == 0 ? 0 : kOddBits, right = kBits * p - to;
    return (right >= 0 ? word >> right : word << -right) & (0x01010101u * ((1u << kBits) - 1)) << to;
  }

  // In place of the factors: weights, then what a column is to sums: its step, and where they are.
  struct alignas(8) ColumnEnd {
    float step;
    int at;  // bytes from the first sums
  };
  __device__ __forceinline__ uint8_t* column_ends() const { return factors_ + 4 * kWeightStride; }

  __device__ __forceinline__ void put_column(int column, float step, int place) const {
    ColumnEnd end;
    end.step = step;
    end.at = 16 * place;
    *reinterpret_cast<ColumnEnd*>(column_ends() + column_end_at(column)) = end;
  }
  // Of the lane's head.
  __device__ __forceinline__ float* sums_at(int bytes) const {
    return reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(sums_ + h_) + bytes);
  }
  // Columns that fill a plane up to a step of sixteen: a lane for each of eight of three planes, whose numbers are
  // bytes of a word, in eights.
  __device__ __forceinline__ void put_gaps(const ColumnPlanes& planes) const {
    const int counts = planes.count[0] / 8 | planes.count[1] << 5 | planes.count[2] << 13;
    const int firsts = planes.first(1) << 5 | planes.first(2) << 13;
    const int shift = lane_ & 24, count = counts >> shift & 255;
    if (lane_ < 24 && count % 2 != 0) put_column(8 * ((firsts >> shift & 255) + count) + lane_ % 8, 0.0f, D);
  }

  __device__ __forceinline__ void value_sums(const uint8_t* head, const float (&weights)[16], const Joining& joining) {
    float norms[16], zero = 0.0f, peak = kLeastPeak;
    __syncwarp();  // factors were read
    put_norms(head + params_.layouts[1].norms, factors_);
    const LaneChannels<D> own(head, params_.layouts[1], lane_);
#pragma unroll
    for (int j = 0; j < kLaneCount; ++j) {
      const int place = place_of<D>(lane_, j);
      if (own.used(j)) put_column(own.column[j], own.step[j], place);
      if (own.planes.wide != 0 && own.wide(j)) put_column(own.low_digit(j), 0.0625f * own.step[j], place);
    }
    put_gaps(own.planes);
    __syncwarp();
    get_norms(factors_, norms);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      norms[i] *= weights[i];
      zero += norms[i];
      peak = fmaxf(peak, norms[i]);
    }
    zero = sum_over_rows(zero);
    peak = max_over_rows(peak);
    add_lows(own, joining.keep, zero * joining.gain);
    const float inverse = kQuantum<false> * reciprocal(peak);
    __syncwarp();  // norms were read
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      uint32_t bits[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) bits[k] = __float_as_uint(fmaf(norms[i + k], inverse, kRoundingBias));
      *reinterpret_cast<uint2*>(factors_ + h_ * kWeightStride + 2 * token(i)) =
          make_uint2(__byte_perm(bits[0], bits[1], 0x5410), __byte_perm(bits[2], bits[3], 0x5410));
    }
    __syncwarp();
    const float scale = peak * (0.0625f / kQuantum<false>)*joining.gain;
    const uint8_t* const codes = head + params_.layouts[1].codes;
    add_values<4>(codes, own.planes, 0, scale);
    add_values<2>(codes, own.planes, 1, scale);
    add_values<1>(codes, own.planes, 2, scale);
  }

  // Sums so far times `keep`, and what codes of 0 add. `keep` and `lows` are of the lane's head.
  __device__ __forceinline__ void add_lows(const LaneChannels<D>& own, float keep, float lows) {
    float keeps[4], adds[4];
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      keeps[h] = __shfl_sync(0xffffffffu, keep, h);
      adds[h] = __shfl_sync(0xffffffffu, lows, h);
    }
#pragma unroll
    for (int j = 0; j < kLaneCount; ++j) {
      float4& sums = *reinterpret_cast<float4*>(sums_ + 4 * place_of<D>(lane_, j));
      const float4 four = sums;
      sums = make_float4(fmaf(own.low[j], adds[0], four.x * keeps[0]), fmaf(own.low[j], adds[1], four.y * keeps[1]),
                         fmaf(own.low[j], adds[2], four.z * keeps[2]), fmaf(own.low[j], adds[3], four.w * keeps[3]));
    }
  }

  // Columns of one width, 16 at a time, times all tokens: a lane has columns 2 g and 2 g + 1. Codes in lower halves of
  // bytes and those in upper ones are added up apart, so that these need no shift.
  template <int kBits>
  __device__ __forceinline__ void add_values(const uint8_t* codes, const ColumnPlanes& planes, int plane, float scale) {
    constexpr int kWords = kBits;  // of a column that a lane has: each of 32 / kBits tokens
    const int count = planes.count[plane];
    if (count == 0) return;
    uint32_t b[2][4];  // of lower halves, of upper ones; by words, and shifts of these
    read_weights<kBits>(b);
    const uint8_t* tile = codes + planes.offset(plane) + g_ / 4 * (128 * kBits) + 32 * h_ + 8 * (g_ % 4);
    const uint8_t* ends = column_ends() + column_end_at(planes.first(plane)) + 16 * g_;
    // Both digits of a channel among the sixteen: they are added one after the other.
    const bool clash = kBits == 4 && planes.wide == 8 && count == 16;
#pragma unroll 1
    for (int column = 0; column < count; column += 16) {
      __syncwarp();  // other columns of the channel are in the sums
      uint2 words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < kWords) {
          words[i] = *reinterpret_cast<const uint2*>(tile + 128 * i);
        } else {
          words[i] = make_uint2(words[i - kWords].x >> kBits, words[i - kWords].y >> kBits);
        }
      }
      // Sums are read before the products are there.
      const float4 two = *reinterpret_cast<const float4*>(ends);
      float* const first = sums_at(__float_as_int(two.y));
      float* const second = sums_at(__float_as_int(two.w));
      float before[2] = {*first, *second};
      int products[4];
      value_products<kBits>(words, b, products);
      const float of_first = joined(products[0], products[1]) * scale;
      const float of_second = joined(products[2], products[3]) * scale;
      if (clash) {
        if (g_ < 4) *first = fmaf(of_first, two.x, *first), *second = fmaf(of_second, two.z, *second);
        __syncwarp();
        before[0] = *first, before[1] = *second;
      }
      if (!(clash && g_ < 4)) {
        *first = fmaf(of_first, two.x, before[0]);
        *second = fmaf(of_second, two.z, before[1]);
      }
      tile += 2 * 128 * kBits;
      ends += column_end_at(16);
    }
    __syncwarp();
  }

  // Of 16 columns with all tokens, 16 times as great. words: of two columns.
  template <int kBits>
  __device__ __forceinline__ static void value_products(const uint2 (&words)[4], const uint32_t (&b)[2][4],
                                                        int (&products)[4]) {
    constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);
    int low[4] = {}, high[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t lower[4] = {words[i].x & kMask, words[i].y & kMask, words[i + 1].x & kMask,
                                 words[i + 1].y & kMask};
      const uint32_t upper[4] = {words[i].x & kMask << 4, words[i].y & kMask << 4, words[i + 1].x & kMask << 4,
                                 words[i + 1].y & kMask << 4};
      mma_bytes<false>(low, lower, b[0][i], b[0][i + 1]);
      mma_bytes<false>(high, upper, b[1][i], b[1][i + 1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) products[i] = low[i] * 16 + high[i];
  }

  // B fragments, four tokens each, of lower and of upper halves of bytes. Word i of a lane is that of vector h of four,
  // h + 4, ...; with fewer than four words the next are those shifted.
  template <int kBits>
  __device__ __forceinline__ void read_weights(uint32_t (&b)[2][4]) const {
    constexpr int kTokens = 32 / kBits, kShifts = 4 / kBits;
#pragma unroll
    for (int word = 0; word < kBits; ++word) {
#pragma unroll
      for (int part = 0; part < 2 * kShifts; part += 2) {
        const int token = (4 * word + h_) * kTokens + 4 * part;
        const uint4 eight = *reinterpret_cast<const uint4*>(factors_ + g_ / 2 * kWeightStride + 2 * token);
        b[part / kShifts][word + kBits * (part % kShifts)] = own_bytes(eight.x, eight.y);
        b[(part + 1) / kShifts][word + kBits * ((part + 1) % kShifts)] = own_bytes(eight.z, eight.w);
      }
    }
  }

  const SpectralParams& params_;
  const float* const queries_;  // at this lane's head
  const float* const terms_;
  const float scale_;
  float* const sums_;       // [D][4], by place_of
  uint8_t* const factors_;  // [columns / 32][4][kFactorStride], and what comes in their place
  const int factor_bytes_;
  const int lane_, g_, h_;
  float highest_ = kHidden;
  float sum_ = 0.0f;          // this lane's share
  float output_[D / 8] = {};  // of rows
};

}  // namespace kvasir::cuda
