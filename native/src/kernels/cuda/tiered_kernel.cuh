// Decode attention over tiered keys in one launch.
//
// A block takes a part of one sequence for four query heads of a kv head; a warp takes whole pages of it, chunk by
// chunk through a ring of its own that it fills itself. Everything is products of bytes, as in sides.cuh, with two
// differences: scales fold into queries anew for every 32 tokens and into weights for every 32 channels, so folding
// must be cheap; and the greatest range, which the page carries, bounds the products, so that none has to be looked
// for.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/arrivals.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/tiered_params.h"

namespace kvasir::cuda {

constexpr float kTieredHidden = -1e30f;  // score of a token that must not be seen, and maximum of no tokens

// What a warp knows of one of its pages.
struct TieredPage {
  const uint8_t* block;
  int n16;
  int n4;
};

// Copies the chunks of a warp's pages, in order, a few chunks ahead of where they are used.
template <int D, int kBits, int kKeyGroup>
class TieredFetcher {
 public:
  static constexpr int kSlotBytes = tiered_slot_bytes(kBits);
  static constexpr int kSlots = tiered_slots(kBits);
  static constexpr TieredFormat kFormat = {D, kBits, kKeyGroup, 32};  // but for the groups of values
  static constexpr int kWideBytes = kFormat.wide_chunk_bytes(), kNarrowBytes = kFormat.narrow_chunk_bytes();
  static constexpr int kValueCodeBytes = kFormat.value_code_bytes();

  __device__ TieredFetcher(const TieredParams& params, const uint64_t* pages, int first, int end, int kv_head, int lane,
                           uint8_t* slots, TieredPage* queue)
      : params_(params),
        pages_(pages),
        page_(first),
        end_(end),
        kv_head_(kv_head),
        lane_(lane),
        slots_(slots),
        queue_(queue) {
    if (page_ < end_) open(resolve(page_));
    for (int i = 0; i + 1 < kSlots; ++i) issue();
  }

  __device__ __forceinline__ KeyChunks chunks_of(const TieredPage& page) const {
    return key_chunks(D - page.n16 - page.n4, page.n4, kWideBytes, kNarrowBytes);
  }

  // The warp's page number `index` of those that it has. Opened before.
  __device__ __forceinline__ TieredPage page(int index) const {
    __syncwarp();
    return queue_[index % 4];
  }

  // The next chunk.
  __device__ __forceinline__ const uint8_t* acquire() {
    wait_copies<kSlots - 2>();
    __syncwarp();
    issue();
    const uint8_t* const chunk = slots_ + read_ * kSlotBytes;
    read_ = (read_ + 1) % kSlots;
    return chunk;
  }

 private:
  __device__ __forceinline__ TieredPage resolve(int page) const {
    const auto* base = reinterpret_cast<const uint8_t*>(__ldg(pages_ + page));
    const uint2 place = __ldg(reinterpret_cast<const uint2*>(base) + kv_head_);
    return {base + place.x, static_cast<int>(place.y & 0xffff), static_cast<int>(place.y >> 16)};  // n16, n4
  }
  __device__ __forceinline__ void open(const TieredPage& page) {
    if (lane_ == 0) queue_[opened_ % 4] = page;
    ++opened_;
    source_ = page.block;
    const KeyChunks chunks = chunks_of(page);
    narrow_ = chunks.narrow;
    at_ = -chunks.wide - chunks.narrow;
    if (page_ + kTieredWarps < end_) next_ = resolve(page_ + kTieredWarps);  // not waited for here
  }
  __device__ __forceinline__ void issue() {
    if (page_ < end_) {
      int bytes = kValueCodeBytes;
      if (at_ < 0) {
        bytes = at_ < -narrow_ ? kWideBytes : kNarrowBytes;
      } else if ((params_.value_groups >> at_ & 1) != 0) {
        bytes += kValueParameterBytes;
      }
      const uint32_t to = shared_address(slots_ + write_ * kSlotBytes);
#pragma unroll
      for (int i = 0; i < kSlotBytes; i += 512) {
        if (i + lane_ * 16 < bytes) copy16(to + i + lane_ * 16, source_ + i + lane_ * 16);
      }
      source_ += bytes;
      if (++at_ == D / 32) {
        page_ += kTieredWarps;
        if (page_ < end_) open(next_);
      }
    }
    commit_copies();
    write_ = (write_ + 1) % kSlots;
  }

  const TieredParams& params_;
  const uint64_t* const pages_;
  int page_;
  const int end_, kv_head_, lane_;
  uint8_t* const slots_;
  TieredPage* const queue_;
  const uint8_t* source_ = nullptr;
  int at_ = 0;      // the next chunk: of values from 0 on, of keys before
  int narrow_ = 0;  // narrow ones among those of keys
  int opened_ = 0, write_ = 0, read_ = 0;
  TieredPage next_ = {};
};

// A lane (g = lane / 4, h = lane % 4) holds head h: of the scores those of tokens g, g + 8, ..., of the output channels
// g, g + 8, .... Scores are base-2 logarithms.
template <int D, int kBits, int kKeyGroup>
class TieredWarp {
 public:
  using Fetcher = TieredFetcher<D, kBits, kKeyGroup>;

  __device__ TieredWarp(const TieredParams& params, const float* queries, float scale, int lane)
      : params_(params), queries_(queries + lane % 4), scale_(scale), g_(lane / 4), h_(lane % 4) {}

  __device__ __forceinline__ void page(TieredFetcher<D, kBits, kKeyGroup>& fetcher, const TieredPage& page,
                                       int hidden) {
    float scores[16];
    const KeyChunks chunks = fetcher.chunks_of(page);
    key_scores(fetcher, chunks, scores);
    const uint8_t* const values =
        page.block + chunks.wide * Fetcher::kWideBytes + chunks.narrow * Fetcher::kNarrowBytes;
    add_wide_tier(values + params_.value_bytes, page.n16, scores);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      scores[i] *= scale_;
      if (8 * i + g_ < hidden) scores[i] = kTieredHidden;
    }
    const float2 joining = softmax(scores);
    ValueFactors factors;
#pragma unroll
    for (int v = 0; v < D / 32; ++v) {
      const uint8_t* chunk = fetcher.acquire();
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
      scores[i] = visible ? (sums[2 * i] + sums[2 * i + 1]) * scale_ : kTieredHidden;
    }
    const float2 joining = softmax(scores);
    const uint32_t low = split_halves(scores[0]), high = split_halves(scores[1]);
#pragma unroll
    for (int v = 0; v < D / 32; ++v) zero_[v] *= joining.x;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      float products[4] = {};
      mma_halves(products, __ldg(groups + 32 * (D / 16 + i)), low, high);
      output_[2 * i] = fmaf(output_[2 * i], joining.x, (products[0] + products[1]) * joining.y);
      output_[2 * i + 1] = fmaf(output_[2 * i + 1], joining.x, (products[2] + products[3]) * joining.y);
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
  __device__ __forceinline__ void key_scores(TieredFetcher<D, kBits, kKeyGroup>& fetcher, const KeyChunks& chunks,
                                             float (&scores)[16]) {
    KeySums sums;
#pragma unroll
    for (int t = 0; t < kTokenSpans; ++t) {
      sums.zero[t] = sums.scale[t] = 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.products[t][0][i] = sums.products[t][1][i] = 0;
    }
#pragma unroll 1
    for (int k = 0; k < chunks.wide; ++k) {
      add_chunk(fetcher.acquire(), WideColumns(*this), Fetcher::kWideBytes - kKeyCodeBytes, sums);
    }
#pragma unroll 1
    for (int k = 0; k < chunks.narrow; ++k) {
      add_chunk(fetcher.acquire(), NarrowColumns(*this), Fetcher::kNarrowBytes - kKeyCodeBytes, sums);
    }
#pragma unroll
    for (int t = 0; t < kTokenSpans; ++t) {
      const float lo = sum_over_rows(sums.zero[t]);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int(&c)[4] = sums.products[t][tile];
        scores[4 * t + 2 * tile] = fmaf(__int2float_rn(c[0] * 256 + c[1]), sums.scale[t], lo);
        scores[4 * t + 2 * tile + 1] = fmaf(__int2float_rn(c[2] * 256 + c[3]), 0.25f * sums.scale[t], lo);
      }
    }
  }

  // By 32 tokens.
  struct KeySums {
    int products[kTokenSpans][2][4];
    float zero[kTokenSpans], scale[kTokenSpans];
  };

  // The four columns x = g, g + 8, ... of a chunk: queries of their channels, and of those the steps of their codes.
  // `load` brings {range, lo} of a group; fold makes a B fragment of columns j and j + 1.
  struct NarrowColumns {
    const TieredWarp& warp;
    float queries[4], steps[4];
    uint4 parameters;

    __device__ explicit NarrowColumns(const TieredWarp& of) : warp(of) {}
    __device__ __forceinline__ void open(const uint8_t* chunk) {
      const uint2 columns = *reinterpret_cast<const uint2*>(chunk + kPeakBytes + 8 * warp.g_);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t column = (j < 2 ? columns.x : columns.y) >> 16 * (j % 2);
        const uint32_t kind = column >> 8 & 3;
        queries[j] = warp.queries_[4 * (column & 255)];
        steps[j] = queries[j] * (kind == kTwoBits    ? 1.0f / 3.0f
                                 : kind == kLowBits  ? 1.0f / 15.0f
                                 : kind == kHighBits ? 4.0f / 15.0f
                                                     : 0.0f);
      }
    }
    __device__ __forceinline__ void load(const uint8_t* chunk, int group) {
      parameters =
          *reinterpret_cast<const uint4*>(chunk + kNarrowParametersOffset + group * kNarrowGroupBytes + 16 * warp.g_);
    }
    __device__ __forceinline__ void fold(float inverse, float& zero, uint32_t (&b)[2]) const {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const float2 first = halves_to_floats(j == 0 ? parameters.x : parameters.z);  // range, lo
        const float2 second = halves_to_floats(j == 0 ? parameters.y : parameters.w);
        zero = fmaf(queries[j], first.y, fmaf(queries[j + 1], second.y, zero));
        b[j / 2] = fold_pair(steps[j] * first.x, steps[j + 1] * second.x, inverse);
      }
    }
  };
  struct WideColumns {
    const TieredWarp& warp;
    float queries[2];
    uint2 parameters;

    __device__ explicit WideColumns(const TieredWarp& of) : warp(of) {}
    __device__ __forceinline__ void open(const uint8_t* chunk) {
      const uint32_t channels = *reinterpret_cast<const uint16_t*>(chunk + kPeakBytes + 2 * warp.g_);
      queries[0] = warp.queries_[4 * (channels & 255)];
      queries[1] = warp.queries_[4 * (channels >> 8)];
    }
    __device__ __forceinline__ void load(const uint8_t* chunk, int group) {
      parameters =
          *reinterpret_cast<const uint2*>(chunk + kWideParametersOffset + group * kWideGroupBytes + 8 * warp.g_);
    }
    __device__ __forceinline__ void fold(float inverse, float& zero, uint32_t (&b)[2]) const {
      const float2 first = halves_to_floats(parameters.x), second = halves_to_floats(parameters.y);
      zero = fmaf(queries[0], first.y, fmaf(queries[1], second.y, zero));
      const float even = queries[0] * (1.0f / 15.0f) * first.x, odd = queries[1] * (1.0f / 15.0f) * second.x;
      b[0] = fold_pair(even, odd, inverse);
      b[1] = fold_pair(even, odd, 4.0f * inverse);
    }
  };

  static __device__ __forceinline__ uint32_t fold_pair(float first, float second, float inverse) {
    constexpr float kBias = kRoundingBias + 128.0f;
    const uint32_t even = __float_as_uint(fmaf(first, inverse, kBias));
    const uint32_t odd = __float_as_uint(fmaf(second, inverse, kBias));
    return transpose(__byte_perm(even, odd, 0x4051) ^ 0x80800000u);
  }

  // A key chunk whose codes begin at `codes`.
  template <class Columns>
  __device__ __forceinline__ void add_chunk(const uint8_t* chunk, Columns columns, int codes, KeySums& sums) {
    const float4 peaks = *reinterpret_cast<const float4*>(chunk);
    columns.open(chunk);
#pragma unroll
    for (int t = 0; t < kTokenSpans; ++t) {
      const float peak = t == 0 ? peaks.x : t == 1 ? peaks.y : t == 2 ? peaks.z : peaks.w;
      // No product is above a third of the peak.
      const float inverse = peak > 1e-30f ? __fdividef(3.0f * kQuantum<true>, peak) : 0.0f;
      sums.scale[t] = peak * (1.0f / (3.0f * kQuantum<true>));
      columns.load(chunk, 32 * t / kKeyGroup);
      uint32_t b[2];
      columns.fold(inverse, sums.zero[t], b);
      const uint2 words = *reinterpret_cast<const uint2*>(chunk + codes + t * kSpanCodeBytes + 8 * (4 * g_ + h_));
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

  // Scores become weights relative to their own maximum. Returns what the state is multiplied by, and what is added.
  template <int kCount>
  __device__ __forceinline__ float2 softmax(float (&scores)[kCount]) {
    float highest = scores[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) highest = fmaxf(highest, scores[i]);
    highest = max_over_rows(highest);
    const float next = fmaxf(highest_, highest);
    const float2 joining = {exp2_approx(highest_ - next), exp2_approx(highest - next)};
    highest_ = next;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      scores[i] = exp2_approx(scores[i] - highest);
      sum += scores[i];
    }
    sum_ = fmaf(sum_, joining.x, sum * joining.y);
    return joining;
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
        zero = fmaf(weights[4 * i + j], parameters.y, zero);
      }
    }
    peak = max_over_rows(peak);
    const float inverse = peak > 1e-30f ? __fdividef(kQuantum<false>, peak) : 0.0f;
    ValueFactors factors;
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      const uint32_t even = __float_as_uint(fmaf(products[i], inverse, kRoundingBias));
      const uint32_t odd = __float_as_uint(fmaf(products[i + 1], inverse, kRoundingBias));
      factors.b[i / 2] = transpose(__byte_perm(even, odd, 0x4051));
    }
    factors.peak = peak;
    factors.zero = zero;
    return factors;
  }

  __device__ __forceinline__ void value_chunk(const uint8_t* codes, int v, const ValueFactors& factors,
                                              float2 joining) {
    zero_[v] = fmaf(zero_[v], joining.x, factors.zero * joining.y);
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
    constexpr float kStep = 1.0f / ((1 << kBits) - 1);
    const float scale = factors.peak * (kStep / kQuantum<false>)*joining.y;
    const float odd_scale = scale * (1.0f / odd_tile_factor(kBits));
    float* const output = output_ + 4 * v;
    output[0] = fmaf(output[0], joining.x, __int2float_rn(even_sum[0] * 256 + even_sum[1]) * scale);
    output[1] = fmaf(output[1], joining.x, __int2float_rn(even_sum[2] * 256 + even_sum[3]) * scale);
    output[2] = fmaf(output[2], joining.x, __int2float_rn(odd_sum[0] * 256 + odd_sum[1]) * odd_scale);
    output[3] = fmaf(output[3], joining.x, __int2float_rn(odd_sum[2] * 256 + odd_sum[3]) * odd_scale);
  }

  const TieredParams& params_;
  const float* const queries_;  // [D][4] in shared memory, at this lane's head
  const float scale_;
  const int g_, h_;
  float highest_ = kTieredHidden;
  float sum_ = 0.0f;         // this lane's share
  float zero_[D / 32] = {};  // this lane's share of what every channel of a chunk is to be increased by
  float output_[D / 8] = {};
};

// Merges `count` states [4][D + 2] that lie `stride` floats apart: element i of the result, maxima and sums included.
template <int D>
__device__ __forceinline__ float merged(const float* states, int64_t stride, int count, int i) {
  const int h = i / (D + 2);
  float highest = kTieredHidden, total = 0.0f;
#pragma unroll 8
  for (int s = 0; s < count; ++s) highest = fmaxf(highest, states[s * stride + h * (D + 2) + D]);
  if (i % (D + 2) == D) return highest;
#pragma unroll 8
  for (int s = 0; s < count; ++s) {
    const float* const state = states + s * stride;
    total = fmaf(state[i], exp2_approx(state[h * (D + 2) + D] - highest), total);
  }
  return total;
}

template <int D, int kBits, int kKeyGroup>
__global__ void __launch_bounds__(32 * kTieredWarps, 1) tiered_kernel(const __grid_constant__ TieredParams params) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kWarpBytes = tiered_slots(kBits) * tiered_slot_bytes(kBits);
  constexpr int kState = 4 * (D + 2);
  static_assert(4 * kState <= kWarpBytes, "states take the place of chunks");
  auto* const queries = reinterpret_cast<float*>(shared + kTieredWarps * kWarpBytes);  // [D][4]
  float* const scales = queries + 4 * D;
  auto* const queue = reinterpret_cast<TieredPage*>(scales + 4);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = blockIdx.x, head_rows = blockIdx.y, sequence_index = blockIdx.z;
  const int kv_head = head_rows / params.row_blocks, first_head = head_rows % params.row_blocks * 4;
  const int heads = min(4, params.group - first_head);
  const int64_t first_row =
      (static_cast<int64_t>(sequence_index) * params.kv_heads + kv_head) * params.group + first_head;
  const DecodeSequence& sequence = params.sequences[sequence_index];
  const int begin = static_cast<int>(static_cast<int64_t>(sequence.page_count) * split / params.splits);
  const int end = static_cast<int>(static_cast<int64_t>(sequence.page_count) * (split + 1) / params.splits);

  uint8_t* const slots = shared + warp * kWarpBytes;
  TieredFetcher<D, kBits, kKeyGroup> fetcher(params, sequence.pages, begin + warp, end, kv_head, lane, slots,
                                             queue + 4 * warp);
  if (warp < 4) {  // head `warp`, scaled to 1 at most
    float values[D / 32], peak = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const int64_t index = (first_row + min(warp, heads - 1)) * D + lane + 32 * i;
      float one[1];
      load_numbers<1, 2>(params.queries, params.type, index, one);
      values[i] = warp < heads ? one[0] : 0.0f;
      peak = fmaxf(peak, fabsf(values[i]));
    }
    peak = max_over_warp(peak);
    const float inverse = peak > 1e-30f ? 1.0f / peak : 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) queries[4 * (lane + 32 * i) + warp] = values[i] * inverse;
    if (lane == 0) scales[warp] = peak * params.scale;
  }
  __syncthreads();

  TieredWarp<D, kBits, kKeyGroup> state(params, queries, scales[lane % 4], lane);
#pragma unroll 1
  for (int page = begin + warp, index = 0; page < end; page += kTieredWarps, ++index) {
    state.page(fetcher, fetcher.page(index), page == 0 ? sequence.hidden_tokens : 0);
  }
  int turn = split + params.splits * warp;  // of all row tiles, which take turns among parts, then warps
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    const RowSpan span = which == 0 ? sequence.sinks : sequence.window;
    const int first = span.begin / kTileSize;
    const int count = span.end > span.begin ? (span.end - 1) / kTileSize - first + 1 : 0;
#pragma unroll 1
    for (; turn < count; turn += params.splits * kTieredWarps) {
      const int tile = first + turn;
      const uint8_t* data =
          span.tiles + kv_head * span.head_stride + static_cast<int64_t>(tile) * RowTileLayout{D}.bytes();
      state.rows(data, span.begin - tile * kTileSize, span.end - tile * kTileSize);
    }
    turn -= count;
  }

  wait_copies<0>();
  __syncwarp();
  state.write(reinterpret_cast<float*>(slots));
  __syncthreads();
  const auto* const states = reinterpret_cast<const float*>(shared);
  const int64_t group = static_cast<int64_t>(sequence_index) * gridDim.y + head_rows;
  float* const partials = params.partials + group * params.splits * kState;
  for (int i = threadIdx.x; i < kState; i += blockDim.x) {
    partials[split * kState + i] = merged<D>(states, kWarpBytes / 4, kTieredWarps, i);
  }
  __syncthreads();
  __shared__ bool last;
  if (threadIdx.x == 0) {
    last = count_arrival(params.arrivals + group) == gridDim.x - 1;
    if (last) params.arrivals[group] = 0;  // for the next launch
  }
  __syncthreads();
  if (!last) return;
  for (int i = threadIdx.x; i < heads * D; i += blockDim.x) {
    const int h = i / D, c = i % D;
    const float output = merged<D>(partials, kState, params.splits, h * (D + 2) + c);
    const float sum = merged<D>(partials, kState, params.splits, h * (D + 2) + D + 1);
    store_number(params.outputs, params.type, (first_row + h) * D + c, sum > 0.0f ? output / sum : 0.0f);
  }
}

// verb(instance) for the head dim and the groups of keys.
template <int D, int kBits, int kKeyGroup>
struct TieredInstance {
  static cudaError_t prepare(int shared_bytes) {
    return cudaFuncSetAttribute(tiered_kernel<D, kBits, kKeyGroup>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shared_bytes);
  }
  static cudaError_t launch(const TieredParams& params, int shared_bytes, cudaStream_t stream) {
    const dim3 grid(params.splits, params.kv_heads * params.row_blocks, params.count);
    tiered_kernel<D, kBits, kKeyGroup><<<grid, 32 * kTieredWarps, shared_bytes, stream>>>(params);
    return cudaGetLastError();
  }
};

template <int kBits, int kKeyGroup, class Verb>
cudaError_t with_tiered_instance(int head_dim, Verb verb) {
  switch (head_dim) {
    case 64:
      return verb(TieredInstance<64, kBits, kKeyGroup>());
    case 96:
      return verb(TieredInstance<96, kBits, kKeyGroup>());
    case 128:
      return verb(TieredInstance<128, kBits, kKeyGroup>());
    default:
      return verb(TieredInstance<256, kBits, kKeyGroup>());
  }
}

template <int kBits, class Verb>
cudaError_t with_tiered_instance(int head_dim, int key_group, Verb verb) {
  return key_group == 32 ? with_tiered_instance<kBits, 32>(head_dim, verb)
                         : with_tiered_instance<kBits, 128>(head_dim, verb);
}

}  // namespace kvasir::cuda
