// A page of 2-bit codes, in launches that have no other pages. The same as page_step in fewer instructions, for heads
// that instructions bound:
//
// - Sums of codes are scaled by the multiplication of the exponent, not before.
// - The reference of the softmax stays until a score is kReferenceSlack above it, so that a page is added to outputs
//   which are not multiplied before.
// - Weights are quantised for the page's largest range, which all heads share, not for each head's largest product.
//
// With eight heads also in fewer registers (scaled_two_bit_step), so that there are as many warps as with four.
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

template <int kTiles, class AnyReader, class AnyQuery>
__device__ __forceinline__ void sum_key_codes(AnyReader& reader, bool cells, const AnyQuery& query,
                                              CodeSums<kTiles>& keys) {
  constexpr int D = AnyReader::kHeadDim;
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

// Finds the page's own maximum, and moves the reference where that is far above it.
template <int D, int kTiles>
__device__ __forceinline__ void find_highest(const CodeSums<kTiles>& keys, SoftmaxState<D, kTiles>& state,
                                             float (&highest)[kTiles]) {
  bool risen = false;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float most[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float(&sums)[16] = keys.sums[n];
      const float sum = fmaxf(fmaxf(sums[2 * t], sums[2 * t + 1]), fmaxf(sums[2 * t + 8], sums[2 * t + 9]));
      most[t] = fmaf(sum, keys.scale[n][t], keys.zero[n]);
    }
    highest[n] = max_over_rows(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])));
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
}

// Makes weights 2^(score - reference) of the sums, and adds them up, times gain.
template <int D, int kTiles>
__device__ __forceinline__ void weigh(CodeSums<kTiles>& keys, const float (&reference)[kTiles],
                                      const float (&gain)[kTiles], SoftmaxState<D, kTiles>& state) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float offset = keys.zero[n] - reference[n];
    float added[kTiles] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      keys.sums[n][i] = exp2_approx(fmaf(keys.sums[n][i], keys.scale_of(n, i), offset));
      added[i % kTiles] += keys.sums[n][i];
    }
#pragma unroll
    for (int i = 1; i < kTiles; ++i) added[0] += added[i];
    state.sum[n] = fmaf(added[0], gain[n], state.sum[n]);
  }
}

// Value part kPart, whose tokens have these weights, at most 1.
template <int kPart, int D, int kTiles, class AnyReader>
__device__ __forceinline__ void add_value_codes(AnyReader& reader, bool cells, const float (&weights)[kTiles][16],
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
  template <class AnyReader>
  __device__ __forceinline__ void take(AnyReader&, const Tag&) {}
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
template <int D, int kTiles, class AnyReader, class AnyQuery, class Labels>
__device__ __forceinline__ void two_bit_step(AnyReader& reader, const Tag& tag, int lane, const AnyQuery& query,
                                             Labels labels, SoftmaxState<D, kTiles>& state) {
  labels.take(reader, tag);
  CodeSums<kTiles> keys;
  sum_key_codes(reader, tag.has(Tag::kKeyCells), query, keys);
  labels.add_to_scores(tag, keys);
  if (tag.begin() > 0) {
    make_scores(keys);
    hide_before(tag.begin(), lane, keys.sums);
  }
  float highest[kTiles], gain[kTiles];  // what makes weights relative to the page's maximum relative to the reference
  find_highest(keys, state, highest);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) gain[n] = weight_of(highest[n], state.max[n]);
  weigh(keys, highest, gain, state);
  labels.add_weights(tag, keys.sums, gain, state);
  reader.next_part(tag.has(Tag::kJoin));
  add_value_codes<0>(reader, tag.has(Tag::kValueCells), keys.sums, gain, state);
  if constexpr (D > kValueSpan) {
    reader.next_part(tag.has(Tag::kJoin << 1));
    add_value_codes<1>(reader, tag.has(Tag::kValueCells), keys.sums, gain, state);
  }
  reader.release();
}

// The widest range of the part that the reader stands at.
template <class AnyReader>
__device__ __forceinline__ float widest_range(const AnyReader& reader) {
  uint32_t most = 0;  // range, lo: of each the greatest, at least 0, two words an instruction
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 four = reader.parameters(i);
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) asm("max.f16x2 %0, %0, %1;" : "+r"(most) : "r"(words[j]));
  }
  return max_over_rows(halves_to_floats(most).x);
}

// Largest magnitude of a quantised product where exponentials give its scale: below 65535 by more than the rounding of
// scores in the thousands.
constexpr float kLooseQuantum = 65280.0f;

// The same where there are no labels and one part of values, in fewer registers. The widest range is found first, and
// exponentials are of weights as they are to be quantised: no ranges have to be kept until all have been seen, and none
// is multiplied.
template <int D, int kTiles, class AnyReader, class AnyQuery>
__device__ __forceinline__ void scaled_two_bit_step(AnyReader& reader, const Tag& tag, int lane, const AnyQuery& query,
                                                    SoftmaxState<D, kTiles>& state) {
  static_assert(D <= kValueSpan);
  constexpr int kPairs = D / 32;
  CodeSums<kTiles> keys;
  sum_key_codes(reader, tag.has(Tag::kKeyCells), query, keys);
  reader.next_part(tag.has(Tag::kJoin));
  if (tag.begin() > 0) {
    make_scores(keys);
    hide_before(tag.begin(), lane, keys.sums);
  }
  const float widest = widest_range(reader);
  const float unit = widest > 0.0f ? widest * (1.0f / kLooseQuantum) : 1.0f;
  const float shift = __log2f(unit);
  float highest[kTiles], gain[kTiles];  // what makes weights relative to the reference, 1 again instead of 1 / unit
  find_highest(keys, state, highest);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    gain[n] = weight_of(highest[n], state.max[n]) * unit;
    highest[n] += shift;
  }
  weigh(keys, highest, gain, state);
  const bool cells = tag.has(Tag::kValueCells);
  const float centre = centre_of(2, cells);
  uint32_t fragments[kTiles][8];
  float zero[kTiles] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint4 four = reader.parameters(i / 2);
    const float2 first = halves_to_floats(i % 2 == 0 ? four.x : four.z);  // range, lo
    const float2 second = halves_to_floats(i % 2 == 0 ? four.y : four.w);
    const float first_base = fmaf(first.x, centre, first.y), second_base = fmaf(second.x, centre, second.y);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float* const weights = keys.sums[n] + 2 * i;
      zero[n] = fmaf(weights[1], second_base, fmaf(weights[0], first_base, zero[n]));
      fragments[n][i] = quantised_products<false>({weights[0], first.x}, {weights[1], second.x});
    }
  }
  reader.skip_parameters(16 * 32);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) state.zero[n][0] = fmaf(zero[n], gain[n], state.zero[n][0]);
  contract_codes<2, 4, kPairs, false, kTiles, 4>(reader, fragments, [&](int n, int tile, float sum, float next) {
    float* const output = state.output[n] + 2 * tile;
    const float factor = gain[n] * step_of_tile<2, 4, kPairs>(tile, cells);
    output[0] = fmaf(sum, factor, output[0]);
    output[1] = fmaf(next, factor, output[1]);
  });
  reader.release();
}

}  // namespace kvasir::cuda
