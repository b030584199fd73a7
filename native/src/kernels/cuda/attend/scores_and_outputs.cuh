// Scores from keys and outputs from values, for one page (128 tokens, any kind) or one row tile (16 tokens, float16).
#pragma once

#include <type_traits>

#include "kernels/cuda/attend/code_products.cuh"
#include "kernels/cuda/attend/folded_factors.cuh"
#include "kernels/cuda/attend/labels.cuh"
#include "kernels/cuda/attend/query.cuh"
#include "kernels/cuda/attend/softmax.cuh"
#include "kernels/cuda/layout/code_unit.h"

namespace kvasir::cuda {

// What a code counts in the sums of a tile, as a part of its range.
template <int kBits, int kSteps, int kPairs>
__device__ __forceinline__ float step_of_tile(int tile, bool cells) {
  constexpr CodeUnit kEnds = code_unit(kBits, false), kCells = code_unit(kBits, true);
  const float step = cells ? kCells.step : kEnds.step;
  return step * (1.0f / tile_factor(kBits, kInFours<kBits, kSteps, kPairs>, tile));
}

// CodeUnit::centre for bits that are not known at compile time: half a cell is 2^-(bits + 1).
__device__ __forceinline__ float centre_of(int bits, bool cells) {
  return cells ? __int_as_float((126 - (bits == kWideBits ? 16 : bits)) << 23) : 0.0f;
}
static_assert(code_unit(2, true).centre == 0.125f && code_unit(kWideBits, true).centre == 0x1p-17f, "as there");

// verb(std::integral_constant) for a width of codes. Without kAllKinds there are none of 16 bits.
template <bool kAllKinds, class Verb>
__device__ __forceinline__ void with_width(int bits, const Verb& verb) {
  switch (bits) {
    case 1:
      return verb(std::integral_constant<int, 1>());
    case 2:
      return verb(std::integral_constant<int, 2>());
    case 3:
      return verb(std::integral_constant<int, 3>());
    case 4:
      return verb(std::integral_constant<int, 4>());
    case 8:
      return verb(std::integral_constant<int, 8>());
    default:
      return verb(std::integral_constant < int, kAllKinds ? kWideBits : 8 > ());
  }
}

template <int kBits, int D, int kTiles>
__device__ __forceinline__ void code_scores(Reader<D>& reader, bool cells, const Folded<kTiles, D / 8>& folded,
                                            float (&scores)[kTiles][16]) {
  contract_codes<kBits, D / 32, 4, true, kTiles>(reader, folded.fragments, [&](int n, int tile, float sum, float next) {
    const float scale = folded.scale[n] * step_of_tile<kBits, D / 32, 4>(tile, cells);
    scores[n][2 * tile] = fmaf(sum, scale, folded.zero[n]);
    scores[n][2 * tile + 1] = fmaf(next, scale, folded.zero[n]);
  });
}

// Keys with parameters per token: span kSpan of the channels. A query is at most 1, so that it is quantised without
// looking at it. `scores` hold the parameters of a token until its sum comes.
template <int kBits, int kSpan, int D, int kTiles>
__device__ __forceinline__ void token_scores(Reader<D>& reader, bool cells, const Query<D, kTiles>& query,
                                             float (&scores)[kTiles][16]) {
  constexpr int kChannels = D < kValueSpan ? D : kValueSpan;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 four = reader.parameters(i);
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) scores[n][4 * i + j] = __uint_as_float(words[j]);
    }
  }
  reader.skip_parameters(4 * kPageTokens);
  uint32_t fragments[kTiles][kChannels / 16];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < kChannels / 8; i += 2) {
      const float* values = query.values[n] + kSpan * (kValueSpan / 8) + i;
      fragments[n][i / 2] = quantised_pair<true>(values[0], values[1], kQuantum<true>);
    }
  }
  contract_codes<kBits, kChannels / 32, 4, true, kTiles>(
      reader, fragments, [&](int n, int tile, float sum, float next) {
        const float scale = query.scale[n] * (step_of_tile<kBits, kChannels / 32, 4>(tile, cells) / kQuantum<true>);
        const float zero = query.scale[n] * query.sum[n][kSpan], shift = zero * centre_of(kBits, cells);
        float* const score = scores[n] + 2 * tile;
        const float2 first = halves_to_floats(__float_as_uint(score[0]));  // range, lo
        const float2 second = halves_to_floats(__float_as_uint(score[1]));
        score[0] = fmaf(fmaf(sum, scale, shift), first.x, zero * first.y);
        score[1] = fmaf(fmaf(next, scale, shift), second.x, zero * second.y);
      });
}

template <int kSpan, int D, int kTiles>
__device__ __forceinline__ void token_page_scores(Reader<D>& reader, int bits, bool cells,
                                                  const Query<D, kTiles>& query, float (&scores)[kTiles][16]) {
  switch (bits) {
    case 2:
      return token_scores<2, kSpan>(reader, cells, query, scores);
    case 4:
      return token_scores<4, kSpan>(reader, cells, query, scores);
    case 8:
      return token_scores<8, kSpan>(reader, cells, query, scores);
    default:
      return token_scores<kWideBits, kSpan>(reader, cells, query, scores);
  }
}

// The reader stands at the part.
template <bool kAllKinds, int D, int kTiles>
__device__ __forceinline__ void page_scores(Reader<D>& reader, int bits, bool cells, const Query<D, kTiles>& query,
                                            float (&scores)[kTiles][16]) {
  if (bits == kFloat16Bits) {
    uint32_t fragments[kTiles][D / 8];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < D / 8; ++i) fragments[n][i] = split_halves(query.values[n][i]);
    }
    contract_halves<D / 16, 8, kTiles>(reader, fragments, [&](int n, int tile, const float(&c)[4]) {
      scores[n][2 * tile] = (c[0] + c[1]) * query.scale[n];
      scores[n][2 * tile + 1] = (c[2] + c[3]) * query.scale[n];
    });
    return;
  }
  Folded<kTiles, D / 8> folded;
  fold<true>(reader, centre_of(bits, cells), query.values, folded);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    folded.scale[n] *= query.scale[n];
    folded.zero[n] = sum_over_rows(folded.zero[n]) * query.scale[n];
  }
  with_width<kAllKinds>(bits, [&](auto width) { code_scores<width.value>(reader, cells, folded, scores); });
}

template <int kBits, int kPart, int D, int kTiles>
__device__ __forceinline__ void code_outputs(Reader<D>& reader, bool cells, const Folded<kTiles, 16>& folded,
                                             const Joining (&joining)[kTiles], SoftmaxState<D, kTiles>& state) {
  constexpr int kPairs = (D < kValueSpan ? D : kValueSpan) / 32;
  contract_codes<kBits, 4, kPairs, false, kTiles>(
      reader, folded.fragments, [&](int n, int tile, float sum, float next) {
        const float scale = folded.scale[n] * step_of_tile<kBits, 4, kPairs>(tile, cells);
        float* output = state.output[n] + kPart * (kValueSpan / 8) + 2 * tile;
        output[0] = fmaf(output[0], joining[n].keep, sum * scale);
        output[1] = fmaf(output[1], joining[n].keep, next * scale);
      });
}

// Value part kPart. The reader stands at it.
template <int kPart, bool kAllKinds, int D, int kTiles>
__device__ __forceinline__ void page_outputs(Reader<D>& reader, int bits, bool cells,
                                             const float (&weights)[kTiles][16], const Joining (&joining)[kTiles],
                                             SoftmaxState<D, kTiles>& state) {
  if (bits == kFloat16Bits) {
    constexpr int kRowTiles = (D < kValueSpan ? D : kValueSpan) / 16;
    uint32_t fragments[kTiles][16];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 16; ++i) fragments[n][i] = split_halves(weights[n][i]);
      state.zero[n][kPart] *= joining[n].keep;
    }
    contract_halves<8, kRowTiles, kTiles>(reader, fragments, [&](int n, int tile, const float(&c)[4]) {
      float* output = state.output[n] + kPart * (kValueSpan / 8) + 2 * tile;
      output[0] = fmaf(output[0], joining[n].keep, (c[0] + c[1]) * joining[n].gain);
      output[1] = fmaf(output[1], joining[n].keep, (c[2] + c[3]) * joining[n].gain);
    });
    return;
  }
  Folded<kTiles, 16> folded;
  fold<false>(reader, centre_of(bits, cells), weights, folded);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    folded.scale[n] *= joining[n].gain;
    state.zero[n][kPart] = fmaf(state.zero[n][kPart], joining[n].keep, folded.zero[n] * joining[n].gain);
  }
  with_width<kAllKinds>(bits,
                        [&](auto width) { code_outputs<width.value, kPart>(reader, cells, folded, joining, state); });
}

template <int kCount, int kTiles>
__device__ __forceinline__ void cap_scores(float cap, float (&scores)[kTiles][kCount]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scores[n][i] = capped(scores[n][i], cap);
  }
}

// Tokens of a page before `begin` must not be seen.
template <int kTiles>
__device__ __forceinline__ void hide_before(int begin, int lane, float (&scores)[kTiles][16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (8 * i + lane / 4 < begin) scores[n][i] = kHidden;
    }
  }
}

// One page. The reader stands at its beginning, and leaves after its values. Without kAllKinds there are no labels, no
// keys per token, no codes of 16 bits and no cap: code for them costs other pages a few percent, though it is not
// executed.
template <bool kAllKinds, int D, int kTiles>
__device__ __forceinline__ void page_step(const AttendParams& params, Reader<D>& reader, const Tag& tag, int lane,
                                          const Query<D, kTiles>& query, const LabelPlace<D, kTiles>& vectors,
                                          SoftmaxState<D, kTiles>& state) {
  float scores[kTiles][16];
  uint32_t join = Tag::kJoin;
  const bool labels = kAllKinds && tag.has(Tag::kLabels), token_keys = kAllKinds && tag.has(Tag::kTokenKeys);
  if (labels) vectors.take_labels(reader, lane);
  if (!token_keys) {
    page_scores<kAllKinds>(reader, tag.key_bits(), tag.has(Tag::kKeyCells), query, scores);
  } else {
    token_page_scores<0>(reader, tag.key_bits(), tag.has(Tag::kKeyCells), query, scores);
    if constexpr (D > kValueSpan) {
      float more[kTiles][16];
      reader.next_part(tag.has(join));
      join <<= 1;
      token_page_scores<1>(reader, tag.key_bits(), tag.has(Tag::kKeyCells), query, more);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 16; ++i) scores[n][i] += more[n][i];
      }
    }
  }
  if (labels) vectors.add_to_scores(tag.page, lane, scores);
  if (kAllKinds && params.cap > 0.0f) cap_scores(params.cap, scores);
  if (tag.begin() > 0) hide_before(tag.begin(), lane, scores);
  Joining joining[kTiles];
  softmax_step(scores, state, joining);
  if (labels) {
    float gain[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) gain[n] = joining[n].gain;
    vectors.collect_weights(tag.page, lane, scores, gain, state);
  }
  reader.next_part(tag.has(join));
  page_outputs<0, kAllKinds>(reader, tag.value_bits(), tag.has(Tag::kValueCells), scores, joining, state);
  if constexpr (D > kValueSpan) {
    reader.next_part(tag.has(join << 1));
    page_outputs<1, kAllKinds>(reader, tag.value_bits(), tag.has(Tag::kValueCells), scores, joining, state);
  }
  reader.release();
}

// One row tile. The reader stands at its keys, and leaves after its values.
template <bool kAllKinds, int D, int kTiles, class AnyReader, class AnyQuery>
__device__ __forceinline__ void row_step(const AttendParams& params, AnyReader& reader, const Tag& tag, int lane,
                                         const AnyQuery& query, SoftmaxState<D, kTiles>& state) {
  constexpr int kGroups = D / 16;
  float sum[kTiles][4] = {};
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const uint4 words = reader.group(i, kGroups);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float4 four = query_four(query, n, i / 2);
      mma_halves(sum[n], words, split_halves(i % 2 == 0 ? four.x : four.z), split_halves(i % 2 == 0 ? four.y : four.w));
    }
  }
  float scores[kTiles][2];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * i + lane / 4;
      const bool visible = token >= tag.begin() && token < tag.end();
      float score = (sum[n][2 * i] + sum[n][2 * i + 1]) * query.scale[n];
      if (kAllKinds && params.cap > 0.0f) score = capped(score, params.cap);
      scores[n][i] = visible ? score : kHidden;
    }
  }
  Joining joining[kTiles];
  softmax_step(scores, state, joining);
  uint32_t fragments[kTiles][2];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    fragments[n][0] = split_halves(scores[n][0]);
    fragments[n][1] = split_halves(scores[n][1]);
#pragma unroll
    for (int p = 0; p < state.kValueParts; ++p) state.zero[n][p] *= joining[n].keep;
  }
  reader.next_part(tag.has(Tag::kJoin));
  contract_halves<1, kGroups, kTiles>(reader, fragments, [&](int n, int tile, const float(&c)[4]) {
    float* output = state.output[n] + 2 * tile;
    output[0] = fmaf(output[0], joining[n].keep, (c[0] + c[1]) * joining[n].gain);
    output[1] = fmaf(output[1], joining[n].keep, (c[2] + c[3]) * joining[n].gain);
  });
  reader.release();
}

}  // namespace kvasir::cuda
