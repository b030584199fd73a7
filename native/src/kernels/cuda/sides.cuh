// Scores from keys and outputs from values, for one page (128 tokens, any widths) or one row tile (16 tokens, float16).
#pragma once

#include "kernels/cuda/contract.cuh"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/softmax.cuh"

namespace kvasir::cuda {

// The queries of a segment: head h, h + 4, ... of a lane, at channels g, g + 8, ..., at most 1 in magnitude.
template <int D, int kTiles>
struct Query {
  float values[kTiles][D / 8];
  float scale[kTiles];  // what they were divided by, times the softmax scale, in base 2
};

constexpr float kHidden = -1e30f;  // score of a token that must not be seen; finite, so that differences are

// 256 * high + low: the sum that the two bytes of each factor stand for.
__device__ __forceinline__ float joined(int high, int low) { return __int2float_rn(high * 256 + low); }

template <int kBits, int D, int kTiles>
__device__ __forceinline__ void code_scores(Reader<D>& reader, const Folded<kTiles, D / 8>& folded,
                                            float (&scores)[kTiles][16]) {
  contract_codes<kBits, D / 32, 4, true, kTiles>(reader, folded.fragments, [&](int n, int tile, const int(&c)[4]) {
    constexpr float kStep = 1.0f / ((1 << kBits) - 1);
    const float scale = folded.scale[n] * (tile % 2 == 0 ? kStep : kStep / odd_tile_factor(kBits));
    scores[n][2 * tile] = fmaf(joined(c[0], c[1]), scale, folded.zero[n]);
    scores[n][2 * tile + 1] = fmaf(joined(c[2], c[3]), scale, folded.zero[n]);
  });
}

// The reader stands at the part.
template <int D, int kTiles>
__device__ __forceinline__ void page_scores(Reader<D>& reader, int bits, const Query<D, kTiles>& query,
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
  fold<true>(reader, query.values, folded);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    folded.scale[n] *= query.scale[n];
    folded.zero[n] = sum_over_rows(folded.zero[n]) * query.scale[n];
  }
  switch (bits) {
    case 1:
      return code_scores<1>(reader, folded, scores);
    case 2:
      return code_scores<2>(reader, folded, scores);
    case 3:
      return code_scores<3>(reader, folded, scores);
    case 4:
      return code_scores<4>(reader, folded, scores);
    default:
      return code_scores<8>(reader, folded, scores);
  }
}

template <int kBits, int kPart, int D, int kTiles>
__device__ __forceinline__ void code_outputs(Reader<D>& reader, const Folded<kTiles, 16>& folded,
                                             const Joining<kTiles>& joining, SoftmaxState<D, kTiles>& state) {
  constexpr int kPairs = (D < kValueSpan ? D : kValueSpan) / 32;
  contract_codes<kBits, 4, kPairs, false, kTiles>(reader, folded.fragments, [&](int n, int tile, const int(&c)[4]) {
    constexpr float kStep = 1.0f / ((1 << kBits) - 1);
    const float scale = folded.scale[n] * (tile % 2 == 0 ? kStep : kStep / odd_tile_factor(kBits));
    float* output = state.output[n] + kPart * (kValueSpan / 8) + 2 * tile;
    output[0] = fmaf(output[0], joining.keep[n], joined(c[0], c[1]) * scale);
    output[1] = fmaf(output[1], joining.keep[n], joined(c[2], c[3]) * scale);
  });
}

// Value part kPart. The reader stands at it.
template <int kPart, int D, int kTiles>
__device__ __forceinline__ void page_outputs(Reader<D>& reader, int bits, const float (&weights)[kTiles][16],
                                             const Joining<kTiles>& joining, SoftmaxState<D, kTiles>& state) {
  if (bits == kFloat16Bits) {
    constexpr int kRowTiles = (D < kValueSpan ? D : kValueSpan) / 16;
    uint32_t fragments[kTiles][16];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 16; ++i) fragments[n][i] = split_halves(weights[n][i]);
      state.zero[n][kPart] *= joining.keep[n];
    }
    contract_halves<8, kRowTiles, kTiles>(reader, fragments, [&](int n, int tile, const float(&c)[4]) {
      float* output = state.output[n] + kPart * (kValueSpan / 8) + 2 * tile;
      output[0] = fmaf(output[0], joining.keep[n], (c[0] + c[1]) * joining.gain[n]);
      output[1] = fmaf(output[1], joining.keep[n], (c[2] + c[3]) * joining.gain[n]);
    });
    return;
  }
  Folded<kTiles, 16> folded;
  fold<false>(reader, weights, folded);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    folded.scale[n] *= joining.gain[n];
    state.zero[n][kPart] = fmaf(state.zero[n][kPart], joining.keep[n], folded.zero[n] * joining.gain[n]);
  }
  switch (bits) {
    case 1:
      return code_outputs<1, kPart>(reader, folded, joining, state);
    case 2:
      return code_outputs<2, kPart>(reader, folded, joining, state);
    case 3:
      return code_outputs<3, kPart>(reader, folded, joining, state);
    case 4:
      return code_outputs<4, kPart>(reader, folded, joining, state);
    default:
      return code_outputs<8, kPart>(reader, folded, joining, state);
  }
}

// One page. The reader stands at its keys, and leaves after its values.
template <int D, int kTiles>
__device__ __forceinline__ void page_step(Reader<D>& reader, const Tag& tag, int lane, const Query<D, kTiles>& query,
                                          SoftmaxState<D, kTiles>& state) {
  float scores[kTiles][16];
  page_scores(reader, tag.key_bits(), query, scores);
  if (tag.begin() > 0) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (8 * i + lane / 4 < tag.begin()) scores[n][i] = kHidden;
      }
    }
  }
  const Joining<kTiles> joining = softmax_step(scores, state);
  reader.next_part(tag.has(Tag::kJoin));
  page_outputs<0>(reader, tag.value_bits(), scores, joining, state);
  if constexpr (D > kValueSpan) {
    reader.next_part(tag.has(Tag::kJoin << 1));
    page_outputs<1>(reader, tag.value_bits(), scores, joining, state);
  }
  reader.release();
}

// One row tile. The reader stands at its keys, and leaves after its values.
template <int D, int kTiles>
__device__ __forceinline__ void row_step(Reader<D>& reader, const Tag& tag, int lane, const Query<D, kTiles>& query,
                                         SoftmaxState<D, kTiles>& state) {
  constexpr int kGroups = D / 16;
  float sum[kTiles][4] = {};
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const uint4 words = reader.group(i, kGroups);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      mma_halves(sum[n], words, split_halves(query.values[n][2 * i]), split_halves(query.values[n][2 * i + 1]));
    }
  }
  float scores[kTiles][2];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * i + lane / 4;
      const bool visible = token >= tag.begin() && token < tag.end();
      scores[n][i] = visible ? (sum[n][2 * i] + sum[n][2 * i + 1]) * query.scale[n] : kHidden;
    }
  }
  const Joining<kTiles> joining = softmax_step(scores, state);
  uint32_t fragments[kTiles][2];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    fragments[n][0] = split_halves(scores[n][0]);
    fragments[n][1] = split_halves(scores[n][1]);
#pragma unroll
    for (int p = 0; p < state.kValueParts; ++p) state.zero[n][p] *= joining.keep[n];
  }
  reader.next_part(tag.has(Tag::kJoin));
  contract_halves<1, kGroups, kTiles>(reader, fragments, [&](int n, int tile, const float(&c)[4]) {
    float* output = state.output[n] + 2 * tile;
    output[0] = fmaf(output[0], joining.keep[n], (c[0] + c[1]) * joining.gain[n]);
    output[1] = fmaf(output[1], joining.keep[n], (c[2] + c[3]) * joining.gain[n]);
  });
  reader.release();
}

}  // namespace kvasir::cuda
