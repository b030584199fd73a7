// What one warp computes of attention over tiered keys: scores, softmax and outputs of its pages and row tiles.
//
// Everything is products of bytes, as in attend/scores_and_outputs.cuh. Scales fold into queries anew for every 32
// tokens and into weights for every 32 channels, so folding must be cheap:
//
// - The greatest product is not looked for: bounds of ranges, which the page has, bound those of keys; those of values
//   are counted in powers of two, unless ranges are uneven.
// - lo is not folded: queries times the lo of keys, and weights times those of values, are products of float16 matrices
//   whose rows are groups.
// - Of codes that mean cells, the middle is half a step above: half the sum of all factors (keys), or a bit below each
//   code (values).
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/attend/folded_factors.cuh"
#include "kernels/cuda/primitives/softmax.cuh"
#include "kernels/cuda/tiered/fetch.cuh"

namespace kvasir::cuda {

// A block's queries in shared memory, scaled to 1 at most.
template <int D>
struct TieredQueries {
  float* rows;         // [kColumnKinds][D][4]: times what a code of the kind counts, in parts of the range
  uint4* fragments;    // [D / 32][32]: B of two steps of 16 channels, split as split_halves does
  __half* magnitudes;  // [D / 32][32][4]: for lane (g = lane / 4, h = lane % 4) head h, channels 4 g .. 4 g + 3 of 32
  float* scales;       // [4]: what products with them are multiplied by to be scores

  __device__ explicit TieredQueries(uint8_t* memory)
      : rows(reinterpret_cast<float*>(memory)),
        fragments(reinterpret_cast<uint4*>(memory + kColumnKinds * D * kQueryRowBytes)),
        magnitudes(reinterpret_cast<__half*>(fragments + D)),
        scales(reinterpret_cast<float*>(magnitudes + 4 * D)) {}

  // A warp for each head: what a lane has of it. first_row: of the first head, of which there are `heads`.
  struct Row {
    float values[D / 32];

    __device__ Row(const TieredParams& params, int64_t first_row, int heads, int head, int lane) {
#pragma unroll
      for (int i = 0; i < D / 32; ++i) {
        const int64_t index = (first_row + min(head, heads - 1)) * D + lane + 32 * i;
        const float value = load_unbranched(params.queries, params.type, index);
        values[i] = head < heads ? value : 0.0f;
      }
    }
  };
  __device__ __forceinline__ void take(const TieredParams& params, const Row& from, int head, int lane) const {
    const float(&values)[D / 32] = from.values;
    float peak = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) peak = fmaxf(peak, fabsf(values[i]));
    peak = max_over_warp(peak);
    const float inverse = inverse_peak(peak);
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const float query = values[i] * inverse;
      float* const row = rows + 4 * (lane + 32 * i) + head;
      row[query_row(D, kLowBits, 0) * 4] = query * (1.0f / 15.0f);
      row[query_row(D, kHighBits, 0) * 4] = query * (4.0f / 15.0f);
      row[query_row(D, kTwoBits, 0) * 4] = query * params.keys.step;
      magnitudes[(32 * i + lane / 4 * 4 + head) * 4 + lane % 4] = __float2half_ru(fabsf(query));
      const __half high = __float2half_rn(query);
      auto* const halves = reinterpret_cast<__half*>(fragments + 32 * i) + query_halves(lane) / 2;
      halves[32 * (2 * head)] = high;
      halves[32 * (2 * head + 1)] = __float2half_rn(query - __half2float(high));
    }
    if (lane == 0) scales[head] = peak * params.scale;
  }
};

// A lane (g = lane / 4, h = lane % 4) holds head h: of the scores those of tokens g, g + 8, ..., of the output channels
// g, g + 8, .... Scores are base-2 logarithms.
template <int D, int kBits, int kKeyGroup>
class TieredWarp {
 public:
  using Fetcher = TieredFetcher<D, kBits, kKeyGroup>;
  using Pieces = typename Fetcher::Pieces;

  __device__ TieredWarp(const TieredParams& params, const TieredQueries<D>& queries, int lane)
      : params_(params),
        queries_(reinterpret_cast<const uint8_t*>(queries.rows) + 4 * (lane % 4)),
        fragments_(queries.fragments + lane),
        magnitudes_(reinterpret_cast<const uint2*>(queries.magnitudes) + lane),
        scale_(queries.scales[lane % 4]),
        g_(lane / 4),
        h_(lane % 4) {}

  __device__ __forceinline__ void page(Fetcher& fetcher, int hidden) {
    float scores[16];
    key_scores(fetcher, scores);
    float unit = scale_;  // of scores
    if (params_.cap > 0.0f || hidden > 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        scores[i] *= unit;
        if (params_.cap > 0.0f) scores[i] = capped(scores[i], params_.cap);
        if (8 * i + g_ < hidden) scores[i] = kHidden;
      }
      unit = 1.0f;
    }
    const float gain = weigh(scores, unit);
    add_values<0>(fetcher, scores, gain);
    if constexpr (kSpans == 2) add_values<1>(fetcher, scores, gain);
  }

  // A row tile, of which tokens begin .. end - 1 are visible.
  __device__ __forceinline__ void rows(const uint8_t* tile, int begin, int end) {
    const auto* groups = reinterpret_cast<const uint4*>(tile) + (4 * g_ + h_);
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      mma_halves(sums, __ldg(groups + 32 * i), halves_of_query(16 * i + 2 * h_), halves_of_query(16 * i + 8 + 2 * h_));
    }
    float scores[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool visible = 8 * i + g_ >= begin && 8 * i + g_ < end;
      float score = (sums[2 * i] + sums[2 * i + 1]) * scale_;
      if (params_.cap > 0.0f) score = capped(score, params_.cap);
      scores[i] = visible ? score : kHidden;
    }
    const Joining joining = softmax_step(scores, highest_, sum_);
    const uint32_t low = split_halves(scores[0]), high = split_halves(scores[1]);
#pragma unroll
    for (int i = 0; i < kSpans; ++i) zero_[i] *= joining.keep;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      float products[4] = {};
      mma_halves(products, __ldg(groups + 32 * (D / 16 + i)), low, high);
      output_[2 * i] = fmaf(output_[2 * i], joining.keep, (products[0] + products[1]) * joining.gain);
      output_[2 * i + 1] = fmaf(output_[2 * i + 1], joining.keep, (products[2] + products[3]) * joining.gain);
    }
  }

  // Writes the state of all four heads: [4][D + 2].
  __device__ __forceinline__ void write(float* state) {
    float* const head = state + h_ * (D + 2);
#pragma unroll
    for (int v = 0; v < D / 32; ++v) {
      const float zero = __shfl_sync(0xffffffffu, zero_[v / kSpanChunks], 4 * params_.group_of[v] + h_);
#pragma unroll
      for (int i = 0; i < 4; ++i) head[32 * v + 8 * i + g_] = output_[4 * v + i] + zero;
    }
    const float sum = sum_over_rows(sum_);
    if (g_ == 0) {
      head[D] = highest_;
      head[D + 1] = sum;
    }
  }

 private:
  static constexpr int kKeyGroups = kPageTokens / kKeyGroup;
  static constexpr int kSpans = Pieces::format().value_spans();
  static constexpr int kSpanChunks = kValueSpan / 32;  // of 32 channels

  // Of this lane's head. stored: a row of the tables in bytes.
  __device__ __forceinline__ float query(uint32_t stored) const {
    return *reinterpret_cast<const float*>(queries_ + stored);
  }

  // By 32 tokens.
  struct KeySums {
    int products[kTokenSpans][2][4];
    int factors[kTokenSpans];  // of columns of 2 bits
  };

  // For queries of 1 at most.
  __device__ __forceinline__ void key_scores(Fetcher& fetcher, float (&scores)[16]) {
    const int n16 = fetcher.page().n16, n4 = fetcher.page().n4, pairs = fetcher.page().pairs;
    const uint8_t* piece = fetcher.acquire();
    const float bound = product_bound(piece), scale = kQuantum<true> * reciprocal(bound);
    const float lo = sum_lo(piece + D);
    KeySums sums = {};
    int left = pairs, until = max(pairs - Pieces::kFirstPairs, 0);
    piece += Pieces::kHeaderBytes;
    while (true) {
#pragma unroll 1
      for (; left - until >= 2 * kBandPairs; left -= 2 * kBandPairs) {
        add_step<true>(piece, 2 * kBandPairs, n4 - (pairs - left), scale, sums);
        piece += 2 * Pieces::kBandBytes;
      }
      if (until == 0) break;
      piece = fetcher.acquire();
      until = max(until - Pieces::kPairs, 0);
    }
    if (left > 0) add_step<false>(piece, left, n4 - (pairs - left), scale, sums);
    const float unit = bound * (1.0f / kQuantum<true>);
#pragma unroll
    for (int t = 0; t < kTokenSpans; ++t) {
      const float zero = fmaf(sum_of_factors(sums.factors[t]), unit * params_.key_middle,
                              kKeyGroups == 1 ? lo : __shfl_sync(0xffffffffu, lo, 4 * t + h_));
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int(&c)[4] = sums.products[t][tile];
        const float step = unit * (1.0f / static_cast<float>(1 << (t % 2 * 4 + tile * 2)));
        scores[4 * t + 2 * tile] = fmaf(joined(c[0], c[1]), step, zero);
        scores[4 * t + 2 * tile + 1] = fmaf(joined(c[2], c[3]), step, zero);
      }
    }
    if (Pieces::wide_joins(pairs, n16)) {
      add_wide_channels(piece + Pieces::format().bands_bytes(left), n16, scores);
      return;
    }
#pragma unroll 1
    for (int first = 0; first < n16; first += kWideBlock) {
      piece = first / kWideBlock % Pieces::kWideBlocks == 0 ? fetcher.acquire() : piece + wide_bytes(kWideBlock);
      add_wide_channels(piece, min(n16 - first, kWideBlock), scores);
    }
  }

  // At least the greatest product of a query and the step of a code, for this lane's head.
  __device__ __forceinline__ float product_bound(const uint8_t* bounds) const {
    __half2 highest = __float2half2_rn(0.0f);
#pragma unroll
    for (int w = 0; w < D / 32; ++w) {  // four channels
      const uint32_t four = reinterpret_cast<const uint32_t*>(bounds)[g_ + 8 * w];
      const uint2 queries = magnitudes_[32 * w];
      highest = __hmax2(highest, __hmul2(as_halves(queries.x), as_halves(__byte_perm(four, 0, 0x1404))));
      highest = __hmax2(highest, __hmul2(as_halves(queries.y), as_halves(__byte_perm(four, 0, 0x3424))));
    }
    const float product = max_over_rows(fmaxf(__low2float(highest), __high2float(highest)));
    // Bounds are halves of ranges, and no step is above a third of a range. Float16 lost 2^-11, or 2^-25 in all.
    return fmaf(product, 1.001f * (2.0f / 3.0f), 1e-7f);
  }
  // Of this lane's head. factors: of column g of B, of this lane's x.
  __device__ __forceinline__ float sum_of_factors(int factors) const {
    factors += __shfl_xor_sync(0xffffffffu, factors, 1);
    factors += __shfl_xor_sync(0xffffffffu, factors, 2);
    return joined(__shfl_sync(0xffffffffu, factors, 8 * h_), __shfl_sync(0xffffffffu, factors, 8 * h_ + 4));
  }

  // A lane loads what belongs to one row as if it were of two: words 0 and 2 of row g, 1 and 3 of row g + 8. Of the
  // products with what belongs to the first, and with what belongs to the second, one row each is right.
  __device__ __forceinline__ static float both_rows(const float (&first)[4], const float (&second)[4]) {
    return (first[0] + first[1]) + (second[2] + second[3]);
  }

  // The sum of queries times lo, of group g of tokens.
  __device__ __forceinline__ float sum_lo(const uint8_t* lo) const {
    const auto* const rows = reinterpret_cast<const uint4*>(lo) + 4 * (g_ % kKeyGroups) + h_;
    float first[4] = {}, second[4] = {};
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const uint4 a = rows[4 * kKeyGroups * i], b = fragments_[32 * i];
      mma_halves(first, a, b.x, b.z);
      mma_halves(second, a, b.y, b.w);
    }
    return both_rows(first, second);
  }

  // What a lane needs of a band: the factors of pair g, the codes of pairs 2 h and 2 h + 1.
  struct Band {
    float queries[2];
    uint32_t ranges[kKeyGroups];  // of both columns
    uint32_t codes[4];            // tokens g and g + 8 of the first four tiles, then of the others
  };

  // pairs: as many as the band has.
  template <bool kWhole>
  __device__ __forceinline__ void load_band(const uint8_t* band, int pairs, float scale, Band& to) const {
    const int half = kWhole ? kBandPairs / 2 : pairs >> 1;
    const int head =
        kWhole ? Pieces::format().band_column_bytes(kBandPairs) : Pieces::format().band_column_bytes(pairs);
    const int codes = kWhole ? Pieces::format().band_head_bytes(kBandPairs) : Pieces::format().band_head_bytes(pairs);
    uint32_t columns = 0;
    to = {};
    if (kWhole || g_ < pairs) {
      columns = reinterpret_cast<const uint32_t*>(band)[g_];
      if constexpr (kKeyGroups == 4) {
        const uint4 four = reinterpret_cast<const uint4*>(band + head)[g_];
        to.ranges[0] = four.x, to.ranges[1] = four.y, to.ranges[2] = four.z, to.ranges[3] = four.w;
      } else {
        to.ranges[0] = reinterpret_cast<const uint32_t*>(band + head)[g_];
      }
    }
    to.queries[0] = query(columns & 0xffffu) * scale;
    to.queries[1] = query(columns >> 16) * scale;
    if (kWhole || h_ < half) {
      const uint4 four = reinterpret_cast<const uint4*>(band + codes)[half * g_ + h_];
      to.codes[0] = four.x, to.codes[1] = four.y, to.codes[2] = four.z, to.codes[3] = four.w;
    }
  }

  // A 1 for each x of this lane that is a column of 2 bits. wide: pairs of the band that are channels of 4 bits, or
  // more.
  __device__ __forceinline__ int narrow_columns(int wide) const {
    return (2 * h_ < wide ? 0 : 0x0101) | (2 * h_ + 1 < wide ? 0 : 0x01010000);
  }

  // Two bands, of `pairs` pairs together; `wide` of them, if so many, are channels of 4 bits.
  template <bool kWhole>
  __device__ __forceinline__ void add_step(const uint8_t* band, int pairs, int wide, float scale, KeySums& sums) {
    Band bands[2];
    load_band<kWhole>(band, min(pairs, kBandPairs), scale, bands[0]);
    load_band<kWhole>(band + Pieces::kBandBytes, max(pairs - kBandPairs, 0), scale, bands[1]);
    int narrow[2] = {0x01010101, 0x01010101};
    if (wide > 0) narrow[0] = narrow_columns(wide), narrow[1] = narrow_columns(wide - kBandPairs);
    uint32_t b[2];
#pragma unroll
    for (int t = 0; t < kTokenSpans; ++t) {
      if (t < kKeyGroups) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 ranges = halves_to_floats(bands[i].ranges[t % kKeyGroups]);
          b[i] = quantised_products<true>({bands[i].queries[0], ranges.x}, {bands[i].queries[1], ranges.y});
        }
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint32_t mask = 0x03030303u << (t % 2 * 4 + tile * 2);
        const int word = t / 2 * 2;
        const uint32_t a[4] = {bands[0].codes[word] & mask, bands[0].codes[word + 1] & mask,
                               bands[1].codes[word] & mask, bands[1].codes[word + 1] & mask};
        mma_bytes<true>(sums.products[t][tile], a, b[0], b[1]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) sums.factors[t] = __dp4a(static_cast<int>(b[i]), narrow[i], sums.factors[t]);
    }
  }

  // Adds up to eight channels of the 16-bit tier, in pairs by products of float16 matrices. One that is left over
  // has two tokens in the place of a pair, of which the query of either half of the tokens takes one.
  __device__ __forceinline__ void add_wide_channels(const uint8_t* block, int channels, float (&scores)[16]) const {
    const int pairs = channels >> 1;
    const bool single = h_ == pairs;
    const uint32_t places = reinterpret_cast<const uint32_t*>(block)[h_];  // query_halves of two channels
    const uint32_t first = half_of_query(g_, places & 0xffffu), second = half_of_query(g_, places >> 16);
    const uint32_t b[2] = {single ? first : first | second << 16, single ? first << 16 : first | second << 16};
    const auto* const elements =
        reinterpret_cast<const uint4*>(block + kWideHeadBytes) + (single ? 32 * pairs + g_ : pairs * g_ + h_);
    const int next = single ? 8 : 8 * pairs, half = single ? 0 : 16 * pairs;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // 32 tokens
      uint4 words = {};
      if (2 * h_ < channels) words = elements[i % 2 * next + i / 2 * half];
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        float sums[4] = {};
        mma_few_halves(sums, tile == 0 ? words.x : words.z, tile == 0 ? words.y : words.w, b[i / 2]);
        scores[4 * i + 2 * tile] += sums[0] + sums[1];
        scores[4 * i + 2 * tile + 1] += sums[2] + sums[3];
      }
    }
  }
  // Of column g of B, and of two neighbouring channels.
  __device__ __forceinline__ uint32_t halves_of_query(int channel) const {
    return *reinterpret_cast<const uint32_t*>(reinterpret_cast<const uint8_t*>(fragments_ - h_) +
                                              query_halves(channel));
  }
  // Of column `column` of B, which is a part of a head's query. place: query_halves of the channel.
  __device__ __forceinline__ uint32_t half_of_query(int column, uint32_t place) const {
    const auto* const first = reinterpret_cast<const uint8_t*>(fragments_ - (4 * g_ + h_));
    return *reinterpret_cast<const uint16_t*>(first + 64 * column + place);
  }

  // Makes weights of scores times `unit`, relative to the page's own maximum, and adds them up. Returns what makes them
  // relative to the reference, which stays until a score is kReferenceSlack above it.
  __device__ __forceinline__ float weigh(float (&scores)[16], float unit) {
    float most[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) most[i] = fmaxf(fmaxf(scores[i], scores[i + 4]), fmaxf(scores[i + 8], scores[i + 12]));
    // A little above, because the products below are not rounded: no weight is above 1.
    const float rounded = max_over_rows(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]))) * unit;
    const float highest = fmaf(fabsf(rounded), 0x1p-23f, rounded);
    if (any_lane(highest > highest_ + kReferenceSlack)) {
      const float keep = move_reference(highest_, fmaxf(highest_, highest));
      sum_ *= keep;
#pragma unroll
      for (int i = 0; i < kSpans; ++i) zero_[i] *= keep;
#pragma unroll
      for (int i = 0; i < D / 8; ++i) output_[i] *= keep;
    }
    const float gain = weight_of(highest, highest_);
    float added[2] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      scores[i] = exp2_approx(fmaf(scores[i], unit, -highest));
      added[i % 2] += scores[i];
    }
    sum_ = fmaf(added[0] + added[1], gain, sum_);
    return gain;
  }

  // A span of values. Weights are folded before a piece is asked for that comes to where parameters are.
  template <int kSpan>
  __device__ __forceinline__ void add_values(Fetcher& fetcher, const float (&weights)[16], float gain) {
    constexpr int kChunks = Pieces::format().span_channels(kSpan) / 32;
    constexpr int kPieceChunks = Pieces::kPieceChannels / 32 < kChunks ? Pieces::kPieceChannels / 32 : kChunks;
    const uint8_t* const parameters = fetcher.acquire();
    const int groups = params_.span_groups[kSpan];
    const uint8_t* const ranges = parameters + padded16(4 * groups);
    add_lo(ranges + groups * 2 * kPageTokens, groups, weights, gain, zero_[kSpan]);
    float biases[kChunks];
#pragma unroll
    for (int v = 0; v < kChunks; ++v) {
      biases[v] = reinterpret_cast<const float*>(parameters)[params_.group_of[kSpan * kSpanChunks + v]];
    }
    const auto ranges_of = [&](int v) { return ranges + params_.group_of[kSpan * kSpanChunks + v] * 2 * kPageTokens; };
    if (any_lane(biases[0] < 0.0f)) {
#pragma unroll 1
      for (int v = 0; v < kChunks; ++v) {
        const float bias = bias_of_products(ranges_of(v), weights);
#pragma unroll
        for (int i = 0; i < kChunks; ++i) biases[i] = i == v ? bias : biases[i];
      }
    }
    ValueFactors factors[kChunks];
    const auto fold_from = [&](int v) { fold(ranges_of(v), biases[v], weights, factors[v]); };
    if constexpr (kPieceChunks < kChunks) {
#pragma unroll
      for (int v = kPieceChunks; v < kChunks; ++v) fold_from(v);
    }
    const uint8_t* codes = parameters + value_parameter_bytes(groups);
#pragma unroll
    for (int v = 0; v < kChunks; v += 2) {
      if (v > 0 && v % kPieceChunks == 0) codes = fetcher.acquire();
      const uint8_t* const part = codes + v % kPieceChunks * 32 * kPageTokens / 8 * kBits;
      float* const output = output_ + (kSpan * kSpanChunks + v) * 4;
      if (v < kPieceChunks) fold_from(v);
      if (v + 1 < kChunks) {
        if (v < kPieceChunks) fold_from(v + 1 < kChunks ? v + 1 : v);
        add_part(part, factors[v], factors[v + 1 < kChunks ? v + 1 : v], gain, output);
      } else {
        add_half_part(part, factors[v], gain, output);
      }
    }
  }

  // Weights times lo, by group.
  __device__ __forceinline__ void add_lo(const uint8_t* lo, int groups, const float (&weights)[16], float gain,
                                         float& zero) const {
    const auto* const rows = reinterpret_cast<const uint4*>(lo) + 4 * min(g_, groups - 1) + h_;
    float first[4] = {}, second[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 a = rows[4 * groups * i];
      mma_halves(first, a, split_halves(weights[4 * i]), split_halves(weights[4 * i + 2]));
      mma_halves(second, a, split_halves(weights[4 * i + 1]), split_halves(weights[4 * i + 3]));
    }
    zero = fmaf(both_rows(first, second), gain, zero);
  }

  // visit(i, pair) for the float16 numbers [8][16] of this lane's tokens: 8 i + g and 8 (i + 1) + g, i even.
  template <class Visit>
  __device__ __forceinline__ void for_token_pairs(const uint8_t* numbers, const Visit& visit) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint4 four = reinterpret_cast<const uint4*>(numbers)[2 * g_ + k];
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) visit(8 * k + 2 * j, halves_to_floats(words[j]));
    }
  }

  // The rounding_bias of this head's greatest product.
  __device__ __forceinline__ float bias_of_products(const uint8_t* ranges, const float (&weights)[16]) const {
    float greatest = 0.0f;
    for_token_pairs(ranges, [&](int i, float2 pair) {
      greatest = fmaxf(greatest, weights[i] * pair.x);
      greatest = fmaxf(greatest, weights[i + 1] * pair.y);
    });
    // Above it, so that rounding to units does not reach the next power of two.
    const float above = fmaxf(max_over_rows(greatest) * 1.0005f, 0x1p-100f);
    return __uint_as_float((__float_as_uint(above) & 0x7f800000u) + (8u << 23)) * 1.5f;
  }

  // Weights with the ranges of a group folded into them, counted in units.
  struct ValueFactors {
    uint32_t b[8];
    float unit;
  };
  __device__ __forceinline__ void fold(const uint8_t* ranges, float bias, const float (&weights)[16],
                                       ValueFactors& factors) const {
    for_token_pairs(ranges, [&](int i, float2 pair) {
      factors.b[i / 2] = quantised_products<false>({weights[i], pair.x}, {weights[i + 1], pair.y}, bias);
    });
    factors.unit = bias * (1.0f / kRoundingBias);
  }

  // What makes the codes of tiles of values middles of cells.
  struct Middles {
    uint32_t of[8 / kBits];

    __device__ explicit Middles(bool cells) {
#pragma unroll
      for (int i = 0; i < 8 / kBits; ++i) {
        of[i] = cells ? 0x01010101u << (i == 0 ? 0 : i * kBits - 1) : 0;
        asm volatile("" : "+r"(of[i]));  // else it is worked out for each use
      }
    }
  };

  // The codes of a tile, which stand at kBit and up, with what makes them middles of cells below. Codes that stand
  // lowest are doubled, so that there is room.
  template <int kBit>
  __device__ __forceinline__ static uint32_t tile_codes(uint32_t word, uint32_t middle) {
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x01010101u;
    constexpr int kUp = kBit == 0 ? 1 : 0;
    return ((kUp == 1 ? word + word : word) & kMask << (kBit + kUp)) | middle;
  }
  // What they are too large by.
  __device__ static constexpr float tile_codes_factor(int bit) { return static_cast<float>(1 << (bit == 0 ? 1 : bit)); }

  template <int kBit>
  __device__ __forceinline__ void add_tile(const uint32_t (&words)[4], const Middles& middles, uint32_t b0, uint32_t b1,
                                           int (&sum)[4]) const {
    const uint32_t middle = middles.of[kBit / kBits];
    const uint32_t a[4] = {tile_codes<kBit>(words[0], middle), tile_codes<kBit>(words[1], middle),
                           tile_codes<kBit>(words[2], middle), tile_codes<kBit>(words[3], middle)};
    mma_bytes<false>(sum, a, b0, b1);
  }
  __device__ __forceinline__ void emit(const int (&sum)[4], int bit, float unit, float* output) const {
    const float factor = unit * (1.0f / tile_codes_factor(bit));
    output[0] = fmaf(joined(sum[0], sum[1]), factor, output[0]);
    output[1] = fmaf(joined(sum[2], sum[3]), factor, output[1]);
  }
  __device__ __forceinline__ void load_words(const uint8_t* part, int group, uint32_t (&words)[4]) const {
    const uint4 four = reinterpret_cast<const uint4*>(part)[32 * group + 4 * g_ + h_];
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  }

  // 64 channels. gain: of the weights.
  __device__ __forceinline__ void add_part(const uint8_t* part, const ValueFactors& first, const ValueFactors& second,
                                           float gain, float* output) const {
    const Middles middles(params_.values.centre > 0.0f);
    int sums[4][4] = {};
    constexpr int kSecond = kBits == 2 ? 4 : 0;  // bit of the second 32 channels' codes
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t words[4];
      load_words(part, s, words);
      add_tile<0>(words, middles, first.b[2 * s], first.b[2 * s + 1], sums[0]);
      add_tile<kBits>(words, middles, first.b[2 * s], first.b[2 * s + 1], sums[1]);
      if constexpr (kBits == 4) load_words(part, 4 + s, words);
      add_tile<kSecond>(words, middles, second.b[2 * s], second.b[2 * s + 1], sums[2]);
      add_tile<kSecond + kBits>(words, middles, second.b[2 * s], second.b[2 * s + 1], sums[3]);
    }
    const float step = params_.values.step * gain;
    emit(sums[0], 0, first.unit * step, output);
    emit(sums[1], kBits, first.unit * step, output + 2);
    emit(sums[2], kSecond, second.unit * step, output + 4);
    emit(sums[3], kSecond + kBits, second.unit * step, output + 6);
  }
  // 32 channels: a byte has codes of two tiles, and of two steps where they have 2 bits.
  __device__ __forceinline__ void add_half_part(const uint8_t* part, const ValueFactors& factors, float gain,
                                                float* output) const {
    const Middles middles(params_.values.centre > 0.0f);
    int sums[2][4] = {};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t words[4];
      load_words(part, kBits == 2 ? s / 2 : s, words);
      if (kBits == 2 && s % 2 == 1) {
#pragma unroll
        for (uint32_t& word : words) word >>= 4;
      }
      add_tile<0>(words, middles, factors.b[2 * s], factors.b[2 * s + 1], sums[0]);
      add_tile<kBits>(words, middles, factors.b[2 * s], factors.b[2 * s + 1], sums[1]);
    }
    const float unit = factors.unit * params_.values.step * gain;
    emit(sums[0], 0, unit, output);
    emit(sums[1], kBits, unit, output + 2);
  }

  const TieredParams& params_;
  const uint8_t* const queries_;   // the tables, at this lane's head
  const uint4* const fragments_;   // [D / 32][32], at this lane
  const uint2* const magnitudes_;  // the same
  const float scale_;
  const int g_, h_;
  float highest_ = kHidden;
  float sum_ = 0.0f;         // this lane's share
  float zero_[kSpans] = {};  // what every channel of group g of a span of values is to be increased by
  float output_[D / 8] = {};
};

}  // namespace kvasir::cuda
