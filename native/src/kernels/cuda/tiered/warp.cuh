// What one warp computes of attention over tiered keys: scores, softmax and outputs of its pages and row tiles.
//
// Everything is products of bytes, as in attend/scores_and_outputs.cuh, with two differences: scales fold into queries
// anew for every 32 tokens and into weights for every 32 channels, so folding must be cheap; and bounds of the ranges,
// which the page carries, bound the products of keys, so that the greatest need not be looked for among all of them.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/attend/folded_factors.cuh"
#include "kernels/cuda/primitives/softmax.cuh"
#include "kernels/cuda/tiered/fetch.cuh"

namespace kvasir::cuda {

// A lane (g = lane / 4, h = lane % 4) holds head h: of the scores those of tokens g, g + 8, ..., of the output channels
// g, g + 8, .... Scores are base-2 logarithms.
template <int D, int kBits, int kKeyGroup>
class TieredWarp {
 public:
  using Fetcher = TieredFetcher<D, kBits, kKeyGroup>;

  __device__ TieredWarp(const TieredParams& params, const float* queries, const uint2* magnitudes, float scale,
                        int lane)
      : params_(params),
        queries_(queries + lane % 4),
        magnitudes_(magnitudes + lane),
        scale_(scale),
        g_(lane / 4),
        h_(lane % 4) {}

  __device__ __forceinline__ void page(Fetcher& fetcher, int hidden) {
    float scores[16];
    key_scores(fetcher, scores);
    add_wide_tier(fetcher.page().wide_tier(params_.value_bytes), fetcher.page().n16, scores);
#pragma unroll
    for (int i = 0; i < 16; ++i) scores[i] *= scale_;
    if (params_.cap > 0.0f) {
#pragma unroll
      for (int i = 0; i < 16; ++i) scores[i] = capped(scores[i], params_.cap);
    }
    if (hidden > 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (8 * i + g_ < hidden) scores[i] = kHidden;
      }
    }
    const Joining joining = softmax_step(scores, highest_, sum_);
    ValueFactors factors;
#pragma unroll
    for (int v = 0; v < D / 32; ++v) {
      const uint8_t* chunk = fetcher.acquire_values(v);
      if ((params_.value_groups >> v & 1) != 0) {
        factors = value_factors(chunk, scores);
        chunk += kValueParameterBytes;
      }
      value_chunk(chunk, v, factors, joining);
    }
  }

  // A row tile, of which tokens begin .. end - 1 are visible.
  __device__ __forceinline__ void rows(const uint8_t* tile, int begin, int end) {
    const auto* groups = reinterpret_cast<const uint4*>(tile) + (4 * g_ + h_);
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      mma_halves(sums, __ldg(groups + 32 * i), split_halves(queries_[4 * (16 * i + g_)]),
                 split_halves(queries_[4 * (16 * i + 8 + g_)]));
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
    for (int v = 0; v < D / 32; ++v) zero_[v] *= joining.keep;
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
      const float zero = sum_over_rows(zero_[v]);
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
  // Without the 16-bit tier, for queries of 1 at most.
  __device__ __forceinline__ void key_scores(Fetcher& fetcher, float (&scores)[16]) {
    const KeyChunks& chunks = fetcher.page().chunks;
    KeySums sums = {};
    float scale = 1.0f;  // of products
#pragma unroll 1
    for (int k = 0; k < chunks.wide + chunks.narrow; ++k) {
      const uint8_t* chunk = fetcher.acquire();
      if (k == 0) {
        scale = __fdividef(kQuantum<true>, product_bound(chunk));
        chunk += D;
      }
      if (k < chunks.wide) {
        add_chunk(chunk, WideColumns(*this), scale, sums);
      } else {
        add_chunk(chunk, NarrowColumns(*this), scale, sums);
      }
    }
    const float inverse = __fdividef(1.0f, scale);
#pragma unroll
    for (int t = 0; t < kTokenSpans; ++t) {
      const float lo = sum_over_rows(sums.zero[t]);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int(&c)[4] = sums.products[t][tile];
        scores[4 * t + 2 * tile] = fmaf(joined(c[0], c[1]), inverse, lo);
        scores[4 * t + 2 * tile + 1] = fmaf(joined(c[2], c[3]), 0.25f * inverse, lo);
      }
    }
  }

  // By 32 tokens.
  struct KeySums {
    int products[kTokenSpans][2][4];
    float zero[kTokenSpans];
  };

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

  // The four columns x = g, g + 8, ... of a chunk: queries of their channels, and what ranges are multiplied with to
  // give products of 16 bits and the middles of cells. `load` brings {range, lo} of a group; fold makes the B
  // fragments.
  struct NarrowColumns {
    static constexpr int kCodesOffset = kNarrowParametersOffset + kPageTokens / kKeyGroup * kNarrowGroupBytes;
    const TieredWarp& warp;
    float queries[4], steps[4], centres[4];
    uint4 parameters;

    __device__ explicit NarrowColumns(const TieredWarp& of) : warp(of) {}
    __device__ __forceinline__ void open(const uint8_t* chunk, float scale) {
      const uint2 columns = *reinterpret_cast<const uint2*>(chunk + 8 * warp.g_);
      const float fifteenth = scale * (1.0f / 15.0f);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t column = (j < 2 ? columns.x : columns.y) >> 16 * (j % 2);
        queries[j] = warp.queries_[4 * (column & 255)];
        const uint32_t kind = column >> 8 & 255;  // ColumnKind
        const bool two_bits = kind == kTwoBits;
        steps[j] = queries[j] * (two_bits ? scale * warp.params_.keys.step : fifteenth * static_cast<float>(kind));
        centres[j] = two_bits ? queries[j] * warp.params_.keys.centre : 0.0f;
      }
    }
    __device__ __forceinline__ void load(const uint8_t* chunk, int group) {
      parameters =
          *reinterpret_cast<const uint4*>(chunk + kNarrowParametersOffset + group * kNarrowGroupBytes + 16 * warp.g_);
    }
    __device__ __forceinline__ void fold(float& zero, uint32_t (&b)[2]) const {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const float2 first = halves_to_floats(j == 0 ? parameters.x : parameters.z);  // range, lo
        const float2 second = halves_to_floats(j == 0 ? parameters.y : parameters.w);
        zero = fmaf(queries[j], first.y, fmaf(queries[j + 1], second.y, zero));
        zero = fmaf(centres[j], first.x, fmaf(centres[j + 1], second.x, zero));
        b[j / 2] = quantised_products<true>({steps[j], first.x}, {steps[j + 1], second.x});
      }
    }
  };
  struct WideColumns {
    static constexpr int kCodesOffset = kWideParametersOffset + kPageTokens / kKeyGroup * kWideGroupBytes;
    const TieredWarp& warp;
    float queries[2], steps[2];
    uint2 parameters;

    __device__ explicit WideColumns(const TieredWarp& of) : warp(of) {}
    __device__ __forceinline__ void open(const uint8_t* chunk, float scale) {
      const uint32_t channels = *reinterpret_cast<const uint16_t*>(chunk + 2 * warp.g_);
      queries[0] = warp.queries_[4 * (channels & 255)];
      queries[1] = warp.queries_[4 * (channels >> 8)];
      steps[0] = queries[0] * scale * (1.0f / 15.0f);
      steps[1] = queries[1] * scale * (1.0f / 15.0f);
    }
    __device__ __forceinline__ void load(const uint8_t* chunk, int group) {
      parameters =
          *reinterpret_cast<const uint2*>(chunk + kWideParametersOffset + group * kWideGroupBytes + 8 * warp.g_);
    }
    __device__ __forceinline__ void fold(float& zero, uint32_t (&b)[2]) const {
      const float2 first = halves_to_floats(parameters.x), second = halves_to_floats(parameters.y);
      zero = fmaf(queries[0], first.y, fmaf(queries[1], second.y, zero));
      b[0] = quantised_products<true>({steps[0], first.x}, {steps[1], second.x});
      b[1] = quantised_products<true>({4.0f * steps[0], first.x}, {4.0f * steps[1], second.x});
    }
  };

  // A key chunk.
  template <class Columns>
  __device__ __forceinline__ void add_chunk(const uint8_t* chunk, Columns columns, float scale, KeySums& sums) {
    columns.open(chunk, scale);
#pragma unroll
    for (int t = 0; t < kTokenSpans; ++t) {
      columns.load(chunk, 32 * t / kKeyGroup);
      uint32_t b[2];
      columns.fold(sums.zero[t], b);
      const uint2 words =
          *reinterpret_cast<const uint2*>(chunk + Columns::kCodesOffset + t * kSpanCodeBytes + 8 * (4 * g_ + h_));
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint32_t word = tile == 0 ? words.x : words.y;
        const uint32_t a[4] = {word & 0x03030303u, word & 0x0c0c0c0cu, word >> 4 & 0x03030303u,
                               word >> 4 & 0x0c0c0c0cu};
        mma_bytes<true>(sums.products[t][tile], a, b[0], b[1]);
      }
    }
  }

  // channels: of the 16-bit tier; their elements follow.
  __device__ __forceinline__ void add_wide_tier(const uint8_t* channels, int n16, float (&scores)[16]) const {
    const auto* elements = reinterpret_cast<const uint4*>(channels + (n16 + 15) / 16 * 16) + 2 * g_;
#pragma unroll 2
    for (int i = 0; i < n16; ++i) {
      const float query = queries_[4 * __ldg(channels + i)];
      const uint4 words[2] = {__ldg(elements + 16 * i), __ldg(elements + 16 * i + 1)};
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t pairs[4] = {words[k].x, words[k].y, words[k].z, words[k].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 pair = halves_to_floats(pairs[j]);
          scores[8 * k + 2 * j] = fmaf(query, pair.x, scores[8 * k + 2 * j]);
          scores[8 * k + 2 * j + 1] = fmaf(query, pair.y, scores[8 * k + 2 * j + 1]);
        }
      }
    }
  }

  // Weights with the ranges of a group folded into them.
  struct ValueFactors {
    uint32_t b[8];
    float peak;
    float zero;  // this lane's share
  };

  __device__ __forceinline__ ValueFactors value_factors(const uint8_t* group, const float (&weights)[16]) const {
    // The greatest product is looked for: weights and ranges differ by so much that a bound would cost bits.
    float products[16], zero = 0.0f, peak = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 four = *reinterpret_cast<const uint4*>(group + 128 * i + 16 * g_);
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 parameters = halves_to_floats(words[j]);  // range, lo
        products[4 * i + j] = weights[4 * i + j] * parameters.x;
        peak = fmaxf(peak, products[4 * i + j]);
        zero = fmaf(weights[4 * i + j], fmaf(parameters.x, params_.values.centre, parameters.y), zero);
      }
    }
    peak = max_over_rows(peak);
    const float inverse = peak > kLeastPeak ? __fdividef(kQuantum<false>, peak) : 0.0f;
    ValueFactors factors;
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      factors.b[i / 2] = quantised_pair<false>(products[i], products[i + 1], inverse);
    }
    factors.peak = peak;
    factors.zero = zero;
    return factors;
  }

  __device__ __forceinline__ void value_chunk(const uint8_t* codes, int v, const ValueFactors& factors,
                                              const Joining& joining) {
    zero_[v] = fmaf(zero_[v], joining.keep, factors.zero * joining.gain);
    const uint32_t(&b)[8] = factors.b;
    const auto* groups = reinterpret_cast<const uint4*>(codes) + (4 * g_ + h_);
    int even_sum[4] = {}, odd_sum[4] = {};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint4 four = groups[32 * (kBits == 2 ? s / 2 : s)];
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
      uint32_t even[4], odd[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const uint32_t word = kBits == 2 ? words[r] >> 4 * (s % 2) : words[r];
        even[r] = word & (kBits == 2 ? 0x03030303u : 0x0f0f0f0fu);
        odd[r] = word & (kBits == 2 ? 0x0c0c0c0cu : 0xf0f0f0f0u);
      }
      mma_bytes<false>(even_sum, even, b[2 * s], b[2 * s + 1]);
      mma_bytes<false>(odd_sum, odd, b[2 * s], b[2 * s + 1]);
    }
    const float scale = factors.peak * (params_.values.step * (1.0f / kQuantum<false>)) * joining.gain;
    const float odd_scale = scale * (1.0f / tile_factor(kBits, false, 1));
    float* const output = output_ + 4 * v;
    output[0] = fmaf(output[0], joining.keep, joined(even_sum[0], even_sum[1]) * scale);
    output[1] = fmaf(output[1], joining.keep, joined(even_sum[2], even_sum[3]) * scale);
    output[2] = fmaf(output[2], joining.keep, joined(odd_sum[0], odd_sum[1]) * odd_scale);
    output[3] = fmaf(output[3], joining.keep, joined(odd_sum[2], odd_sum[3]) * odd_scale);
  }

  const TieredParams& params_;
  const float* const queries_;     // [D][4] in shared memory, at this lane's head
  const uint2* const magnitudes_;  // [D / 32][32] in shared memory, at this lane
  const float scale_;
  const int g_, h_;
  float highest_ = kHidden;
  float sum_ = 0.0f;         // this lane's share
  float zero_[D / 32] = {};  // this lane's share of what every channel of a chunk is to be increased by
  float output_[D / 8] = {};
};

}  // namespace kvasir::cuda
