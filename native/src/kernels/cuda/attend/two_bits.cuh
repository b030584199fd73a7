// A page of 2-bit codes, in launches that have no other pages. The same as page_step in fewer instructions, for heads
// that instructions bound:
//
//   sums of codes are scaled by the multiplication of the exponent, not before;
//   the reference of the softmax stays until a score is kReferenceSlack above it, so that a page is added to outputs,
//   and they are not multiplied before; weights are quantised for the page's largest range, which all heads share, not
//   for each head's largest product.
#pragma once

#include "kernels/cuda/attend/label_counts.cuh"
#include "kernels/cuda/attend/scores_and_outputs.cuh"

namespace kvasir::cuda {

// score = sum * scale[tile % 4] + zero, of the tokens 8 * i + lane / 4; tile = i / 2.
template <int kTiles>
struct CodeSums {
  float sums[kTiles][16];
  float scale[kTiles][4];  // not negative
  float zero[kTiles];

  __device__ __forceinline__ float scale_of(int n, int i) const { return scale[n][i / 2 % 4]; }
};

template <int D, int kTiles, class AnyQuery>
__device__ __forceinline__ void sum_key_codes(Reader<D>& reader, bool cells, const AnyQuery& query,
                                              CodeSums<kTiles>& keys) {
  Folded<kTiles, D / 8> folded;
  fold_fours<true>(
      reader, centre_of(2, cells), [&](int n, int i) { return query_four(query, n, i); }, folded);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float scale = folded.scale[n] * query.scale[n];
#pragma unroll
    for (int t = 0; t < 4; ++t) keys.scale[n][t] = scale * step_of_tile<2, D / 32, 4>(t, cells);
    keys.zero[n] = sum_over_rows(folded.zero[n]) * query.scale[n];
  }
  contract_codes<2, D / 32, 4, true, kTiles, 4>(reader, folded.fragments, [&](int n, int tile, float sum, float next) {
    keys.sums[n][2 * tile] = sum;
    keys.sums[n][2 * tile + 1] = next;
  });
}

// Makes scores of the sums, where something is to be done to them.
template <int kTiles>
__device__ __forceinline__ void make_scores(CodeSums<kTiles>& keys) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      keys.sums[n][i] = fmaf(keys.sums[n][i], keys.scale_of(n, i), keys.zero[n]);
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) keys.scale[n][t] = 1.0f;
    keys.zero[n] = 0.0f;
  }
}

// Makes weights of the sums, relative to the page's own maximum, and adds them up. Returns what makes them relative to
// the reference.
template <int D, int kTiles>
__device__ __forceinline__ void weigh(CodeSums<kTiles>& keys, SoftmaxState<D, kTiles>& state, float (&gain)[kTiles]) {
  float highest[kTiles];
  bool risen = false;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float most = kHidden;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float(&sums)[16] = keys.sums[n];
      const float sum = fmaxf(fmaxf(sums[2 * t], sums[2 * t + 1]), fmaxf(sums[2 * t + 8], sums[2 * t + 9]));
      most = fmaxf(most, fmaf(sum, keys.scale[n][t], keys.zero[n]));
    }
    highest[n] = max_over_rows(most);
    risen |= highest[n] > state.max[n] + kReferenceSlack;
  }
  if (__any_sync(0xffffffffu, risen)) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float keep = move_reference(state.max[n], fmaxf(state.max[n], highest[n]));
      state.sum[n] *= keep;
#pragma unroll
      for (int p = 0; p < state.kValueParts; ++p) state.zero[n][p] *= keep;
#pragma unroll
      for (int i = 0; i < D / 8; ++i) state.output[n][i] *= keep;
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    gain[n] = weight_of(highest[n], state.max[n]);
    const float offset = keys.zero[n] - highest[n];
    float added = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      keys.sums[n][i] = exp2_approx(fmaf(keys.sums[n][i], keys.scale_of(n, i), offset));
      added += keys.sums[n][i];
    }
    state.sum[n] = fmaf(added, gain[n], state.sum[n]);
  }
}

// Value part kPart, whose tokens have these weights, at most 1.
template <int kPart, int D, int kTiles>
__device__ __forceinline__ void add_value_codes(Reader<D>& reader, bool cells, const float (&weights)[kTiles][16],
                                                const float (&gain)[kTiles], SoftmaxState<D, kTiles>& state) {
  constexpr int kPairs = (D < kValueSpan ? D : kValueSpan) / 32;
  const float centre = centre_of(2, cells);
  float ranges[16], widest = 0.0f, zero[kTiles] = {};
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    const uint4 four = reader.parameters(i / 4);
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 parameters = halves_to_floats(words[j]);  // range, lo
      const float base = fmaf(parameters.x, centre, parameters.y);
      ranges[i + j] = parameters.x;
      widest = fmaxf(widest, parameters.x);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) zero[n] = fmaf(weights[n][i + j], base, zero[n]);
    }
  }
  reader.skip_parameters(16 * 32);
  widest = max_over_rows(widest);
  const float inverse = widest > kLeastPeak ? __fdividef(kQuantum<false>, widest) : 0.0f;
#pragma unroll
  for (int i = 0; i < 16; ++i) ranges[i] *= inverse;
  uint32_t fragments[kTiles][8];
  float scale[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      fragments[n][i / 2] = quantised_products<false>({weights[n][i], ranges[i]}, {weights[n][i + 1], ranges[i + 1]});
    }
    state.zero[n][kPart] = fmaf(zero[n], gain[n], state.zero[n][kPart]);
    scale[n] = widest * (1.0f / kQuantum<false>)*gain[n];
  }
  contract_codes<2, 4, kPairs, false, kTiles, 4>(reader, fragments, [&](int n, int tile, float sum, float next) {
    float* const output = state.output[n] + kPart * (kValueSpan / 8) + 2 * tile;
    const float factor = scale[n] * step_of_tile<2, 4, kPairs>(tile, cells);
    output[0] = fmaf(sum, factor, output[0]);
    output[1] = fmaf(next, factor, output[1]);
  });
}

// What pages of 2 bits do with their labels. Labels stand before the page's parts, in the chunk of its keys, which
// stays until the page goes on to its values.
struct NoLabels {
  template <int D>
  __device__ __forceinline__ void take(Reader<D>&, const Tag&) {}
  template <int kTiles>
  __device__ __forceinline__ void add_to_scores(const Tag&, CodeSums<kTiles>&) {}
  template <int D, int kTiles>
  __device__ __forceinline__ void add_weights(const Tag&, const float (&)[kTiles][16], const float (&)[kTiles],
                                              SoftmaxState<D, kTiles>&) {}
};

// Weights are compared by label.
template <int D, int kTiles>
struct MatchedLabels {
  const LabelPlace<D, kTiles>& vectors;
  int lane;

  __device__ __forceinline__ void take(Reader<D>& reader, const Tag& tag) {
    if (tag.has(Tag::kLabels)) vectors.take_labels(reader, lane);
  }
  __device__ __forceinline__ void add_to_scores(const Tag& tag, CodeSums<kTiles>& keys) {
    if (!tag.has(Tag::kLabels)) return;
    make_scores(keys);
    vectors.add_to_scores(tag.page, lane, keys.sums);
  }
  __device__ __forceinline__ void add_weights(const Tag& tag, const float (&weights)[kTiles][16],
                                              const float (&gain)[kTiles], SoftmaxState<D, kTiles>& state) {
    if (tag.has(Tag::kLabels)) vectors.collect_weights(tag.page, lane, weights, gain, state);
  }
};

// They are counted by label.
template <int D, class Counts>
struct CountedLabels {
  static constexpr bool kFar = Counts::kRows > kNearVectors;
  // Whether the chunk of the labels is there as long as they are needed.
  static constexpr bool kStay = D * kPageTokens / 4 <= kChunkGroups * kGroupBytes;

  const LabelPlace<D, 1>& vectors;
  const CountPlace<D, Counts> counts;
  CountState& known;
  int lane;
  bool has = false;                 // this page has some
  const uint8_t* labels = nullptr;  // which are there
  float terms[16] = {};             // of far vectors, which are on their way while keys are multiplied

  __device__ __forceinline__ void take(Reader<D>& reader, const Tag& tag) {
    has = tag.has(Tag::kLabels);
    if (!has) return;
    if constexpr (kStay) {
      has = !vectors.scratch->outgrown;
      labels = reader.position();
      reader.skip_parameters(kBothLabelBytes);
    } else {
      vectors.take_labels(reader, lane);
      labels = vectors.scratch->labels;
    }
    if (kFar && has) load_terms(tag);
  }
  __device__ __forceinline__ void add_to_scores(const Tag& tag, CodeSums<1>& keys) {
    if (!has) return;
    if (!kFar) load_terms(tag);
#pragma unroll
    for (int i = 0; i < 16; ++i) keys.sums[0][i] = fmaf(keys.sums[0][i], keys.scale_of(0, i), terms[i]);
#pragma unroll
    for (int t = 0; t < 4; ++t) keys.scale[0][t] = 1.0f;
  }
  __device__ __forceinline__ void add_weights(const Tag& tag, const float (&weights)[1][16], const float (&gain)[1],
                                              SoftmaxState<D, 1>& state) {
    if (has) counts.add(labels + kLabelBytes, tag.page, lane, weights[0], gain[0], state, known);
  }

 private:
  __device__ __forceinline__ void load_terms(const Tag& tag) {
    const LabelTerms<kFar> of(*vectors.scratch, tag.page, lane);
    const uint4 four = reinterpret_cast<const uint4*>(labels)[lane / 4];
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 16; ++i) terms[i] = of.at(__byte_perm(words[i / 4], 0, 0x4440 + i % 4));
  }
};

// The reader stands at the beginning of the page, and leaves after its values.
template <int D, int kTiles, class AnyQuery, class Labels>
__device__ __forceinline__ void two_bit_step(Reader<D>& reader, const Tag& tag, int lane, const AnyQuery& query,
                                             Labels labels, SoftmaxState<D, kTiles>& state) {
  labels.take(reader, tag);
  CodeSums<kTiles> keys;
  sum_key_codes(reader, tag.has(Tag::kKeyCells), query, keys);
  labels.add_to_scores(tag, keys);
  if (tag.begin() > 0) {
    make_scores(keys);
    hide_before(tag.begin(), lane, keys.sums);
  }
  float gain[kTiles];
  weigh(keys, state, gain);
  labels.add_weights(tag, keys.sums, gain, state);
  reader.next_part(tag.has(Tag::kJoin));
  add_value_codes<0>(reader, tag.has(Tag::kValueCells), keys.sums, gain, state);
  if constexpr (D > kValueSpan) {
    reader.next_part(tag.has(Tag::kJoin << 1));
    add_value_codes<1>(reader, tag.has(Tag::kValueCells), keys.sums, gain, state);
  }
  reader.release();
}

}  // namespace kvasir::cuda
