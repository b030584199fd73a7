// What one warp computes of attention over spectral pages: scores, softmax and sums of its pages and row tiles.
//
// A lane (g = lane / 4, h = lane % 4) holds head h: of the scores those of tokens g, g + 8, .... Scores are base-2
// logarithms. Products are those of bytes, as in attend/folded_factors.cuh: steps fold into the coefficients of
// queries, norms of values into weights; each such factor is two bytes, in rows 2 h and 2 h + 1 of an array in shared
// memory, so that a lane reads its B fragments from there.
//
// Fragments of codes are words of the page. Of keys a word has four columns of a token; of values four tokens of a
// column, and tokens are multiplied in whatever order the words have them, weights alike.
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
  // room: warp_room(D) bytes. queries, terms: [D][4].
  __device__ SpectralWarp(const SpectralParams& params, const float* queries, const float* terms, float scale,
                          uint8_t* room, int lane)
      : params_(params),
        queries_(queries + lane % 4),
        terms_(terms),
        scale_(scale),
        sums_(reinterpret_cast<float*>(room)),
        bases_(sums_ + 4 * D),
        factors_(reinterpret_cast<uint8_t*>(bases_ + D)),
        stride_(factor_stride(params.columns)),
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
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (8 * i + g_ < hidden) scores[i] = kHidden;
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

  // Writes the state of all four heads, [4][2 D + 2]. `state` is not in the room.
  __device__ __forceinline__ void write(float* state) {
    float* const head = state + h_ * (2 * D + 2);
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      head[8 * i + g_] = sums_[32 * i + lane_];
      head[D + 8 * i + g_] = output_[i];
    }
    const float sum = sum_over_rows(sum_);
    if (g_ == 0) {
      head[2 * D] = highest_;
      head[2 * D + 1] = sum;
    }
  }

 private:
  __device__ __forceinline__ void key_scores(const uint8_t* head, float (&scores)[16]) {
    float factor[D / 32][4], peak[4] = {}, zero[4] = {};
    int column[D / 32], low_digit[D / 32];
    __syncwarp();  // the room was read
#pragma unroll 4
    for (int at = 16 * lane_; at < 8 * stride_; at += 512) {
      *reinterpret_cast<uint4*>(factors_ + at) = make_uint4(0, 0, 0, 0);
    }
    const ColumnPlanes planes =
        for_each_channel<D>(head, params_.layouts[0], lane_, [&](int j, int c, const ChannelView& view) {
          const float4 terms = *reinterpret_cast<const float4*>(terms_ + 4 * c);
          const float of[4] = {terms.x, terms.y, terms.z, terms.w};
          column[j] = view.column;
          low_digit[j] = view.low_digit;
#pragma unroll
          for (int h = 0; h < 4; ++h) {
            factor[j][h] = of[h] * view.step;
            zero[h] = fmaf(of[h], view.low, zero[h]);
            if (view.column >= 0) peak[h] = fmaxf(peak[h], fabsf(factor[j][h]));
          }
        });
    __syncwarp();
    float own_peak = 0.0f, own_zero = 0.0f;
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      peak[h] = max_over_warp(peak[h]);
      zero[h] = sum_over_warp(zero[h]);
      const float inverse = peak[h] > kLeastPeak ? __fdividef(kQuantum<true>, peak[h]) : 0.0f;
      if (h == h_) {
        own_peak = peak[h];
        own_zero = zero[h];
      }
#pragma unroll
      for (int j = 0; j < D / 32; ++j) {
        if (column[j] >= 0) put_signed(h, column[j], factor[j][h] * inverse);
        if (low_digit[j] >= 0) put_signed(h, low_digit[j], factor[j][h] * inverse * 0.0625f);
      }
    }
    __syncwarp();
    int products[8][4] = {};
    const uint8_t* const codes = head + params_.layouts[0].codes;
    add_keys<4>(codes, planes, 0, products);
    add_keys<2>(codes, planes, 1, products);
    add_keys<1>(codes, planes, 2, products);
    const float inverse = own_peak * (1.0f / kQuantum<true>);
    const uint8_t* const norms = head + params_.layouts[0].norms;
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float norm = eighths(norms[16 * t + 8 * i + g_], spectral::kNormBias);
        const float product = joined(products[t][2 * i], products[t][2 * i + 1]);
        scores[2 * t + i] = fmaf(product, inverse, own_zero) * (norm * scale_);
      }
    }
  }

  // A product of at most kQuantum<true>, as two bytes.
  __device__ __forceinline__ void put_signed(int h, int column, float product) {
    const int value = __float2int_rn(product), high = (value + 128) >> 8;
    factors_[2 * h * stride_ + column] = static_cast<uint8_t>(high);
    factors_[(2 * h + 1) * stride_ + column] = static_cast<uint8_t>(value);
  }

  // Columns of one width, 32 at a time, times all tokens.
  template <int kBits>
  __device__ __forceinline__ void add_keys(const uint8_t* codes, const ColumnPlanes& planes, int plane,
                                           int (&products)[8][4]) const {
    constexpr int kParts = 8 / kBits;    // tiles of tokens in a word
    constexpr int kBlocks = 8 / kParts;  // of tokens
    constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);
    const int count = planes.count[plane], first = planes.offset(plane) / 64 + h_;
    const uint8_t* factors = factors_ + g_ * stride_ + planes.first(plane) + 4 * h_;
#pragma unroll 1
    for (int chunk = 0; 32 * chunk < count; ++chunk) {
      const uint32_t b0 = *reinterpret_cast<const uint32_t*>(factors + 32 * chunk);
      const uint32_t b1 = *reinterpret_cast<const uint32_t*>(factors + 32 * chunk + 16);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const int vector = first + block * (count / 4) + 8 * chunk;
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint8_t* const at = codes + 64 * (vector + 4 * i);
          const int swap = SpectralFetcher::swapped(vector + 4 * i);
          words[2 * i] = *reinterpret_cast<const uint32_t*>(at + (4 * g_ ^ swap));
          words[2 * i + 1] = *reinterpret_cast<const uint32_t*>(at + ((4 * g_ + 32) ^ swap));
        }
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          const uint32_t a[4] = {words[0] >> kBits * p & kMask, words[1] >> kBits * p & kMask,
                                 words[2] >> kBits * p & kMask, words[3] >> kBits * p & kMask};
          mma_bytes<true>(products[block * kParts + p], a, b0, b1);
        }
      }
    }
  }

  // In place of the factors: bytes of weights, steps and channels of columns.
  __device__ __forceinline__ uint8_t* steps() const { return factors_ + 8 * kWeightStride; }
  __device__ __forceinline__ uint8_t* channels() const { return steps() + params_.columns; }

  __device__ __forceinline__ void value_sums(const uint8_t* head, const float (&weights)[16], const Joining& joining) {
    const uint8_t* const norms = head + params_.layouts[1].norms;
    float products[16], zero = 0.0f, peak = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      products[i] = weights[i] * eighths(norms[8 * i + g_], spectral::kNormBias);
      zero += products[i];
      peak = fmaxf(peak, products[i]);
    }
    zero = sum_over_rows(zero);
    peak = max_over_rows(peak);
    const float inverse = peak > kLeastPeak ? __fdividef(kQuantum<false>, peak) : 0.0f;
    __syncwarp();  // factors were read
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint32_t value = __float2uint_rn(products[i] * inverse);
      factors_[2 * h_ * kWeightStride + 8 * i + g_] = static_cast<uint8_t>(value >> 8);
      factors_[(2 * h_ + 1) * kWeightStride + 8 * i + g_] = static_cast<uint8_t>(value);
    }
    const ColumnPlanes planes =
        for_each_channel<D>(head, params_.layouts[1], lane_, [&](int, int c, const ChannelView& view) {
          bases_[c] = view.low;
          if (view.column >= 0) put_column(view.column, c, view.stored);
          if (view.low_digit >= 0) put_column(view.low_digit, c, view.stored);
        });
    __syncwarp();
    const float lows = zero * joining.gain;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      float& sum = sums_[32 * i + lane_];
      sum = fmaf(sum, joining.keep, lows * bases_[8 * i + g_]);
    }
    const float scale = peak * (1.0f / kQuantum<false>)*joining.gain;
    const uint8_t* const codes = head + params_.layouts[1].codes;
    add_values<4>(codes, planes, 0, scale);
    add_values<2>(codes, planes, 1, scale);
    add_values<1>(codes, planes, 2, scale);
  }

  __device__ __forceinline__ void put_column(int column, int channel, uint8_t step) const {
    steps()[column] = step;
    channels()[column] = static_cast<uint8_t>(channel);
  }

  // Columns of one width, 16 at a time, times all tokens: of the first eight a lane has column g, of the others g + 8.
  template <int kBits>
  __device__ __forceinline__ void add_values(const uint8_t* codes, const ColumnPlanes& planes, int plane, float scale) {
    constexpr int kTokens = 32 / kBits;  // of a word
    constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);
    const int count = planes.count[plane], first = planes.first(plane);
    if (count == 0) return;
    uint32_t b[4][2];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint8_t* const at = factors_ + g_ * kWeightStride + step_token<kBits>(s);
      b[s][0] = *reinterpret_cast<const uint32_t*>(at);
      b[s][1] = *reinterpret_cast<const uint32_t*>(at + 4);
    }
    const uint8_t* tile = codes + planes.offset(plane) + 32 * h_ + 4 * g_;
#pragma unroll 1
    for (int column = 0; column < count; column += 16) {
      int sums[4] = {};
      uint32_t words[2];
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        constexpr int kSteps = kTokens / 8;  // that a word has codes for
        if (s % kSteps == 0) {
          words[0] = *reinterpret_cast<const uint32_t*>(tile + 128 * (s / kSteps));
          words[1] = *reinterpret_cast<const uint32_t*>(tile + 128 * (s / kSteps) + 128 * kBits);
        }
        const int shift = 2 * kBits * (s % kSteps);
        const uint32_t a[4] = {words[0] >> shift & kMask, words[1] >> shift & kMask,
                               words[0] >> (shift + kBits) & kMask, words[1] >> (shift + kBits) & kMask};
        mma_bytes<false>(sums, a, b[s][0], b[s][1]);
      }
      tile += 2 * 128 * kBits;
      __syncwarp();  // sums of other columns of the channel are there
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = column + 8 * i + g_;
        if (at < count) {
          float& sum = sums_[4 * channels()[first + at] + h_];
          const float step = eighths(steps()[first + at], spectral::kStepBias);
          const float digit = kBits == 4 && at < planes.wide ? 16.0f * scale : scale;
          sum = fmaf(joined(sums[2 * i], sums[2 * i + 1]), digit * step, sum);
        }
      }
    }
    __syncwarp();
  }

  // The first token of this lane's eight in a step of 32: words of vector h of four, h + 4, ....
  template <int kBits>
  __device__ __forceinline__ int step_token(int s) const {
    constexpr int kTokens = 32 / kBits, kSteps = kTokens / 8;
    return (4 * (s / kSteps) + h_) * kTokens + s % kSteps * 8;
  }

  const SpectralParams& params_;
  const float* const queries_;  // at this lane's head
  const float* const terms_;
  const float scale_;
  float* const sums_;       // [D][4]
  float* const bases_;      // [D]
  uint8_t* const factors_;  // [8][stride]
  const int stride_;        // of factors
  const int lane_, g_, h_;
  float highest_ = kHidden;
  float sum_ = 0.0f;          // this lane's share
  float output_[D / 8] = {};  // of rows
};

}  // namespace kvasir::cuda
