// What the pattern codec adds to the uniform codec's tiles, over labels that every backend reads alike. Pattern vectors
// are never rebuilt per token: scores take <query, pattern> from a table, values collect weights per pattern. Each
// backend includes this in its pattern source; nothing leaves it.
#pragma once

#include <cstring>

#include "base/half.h"
#include "codecs/pattern/format.h"
#include "kernels/forward_inl.h"
#include "kernels/kernels.h"

namespace kvasir {
namespace {

// Entries of the page's tokens; false where no token has a pattern.
inline bool page_entries(const PageFormat& format, const uint8_t* page, const SideView& side, int* entries) {
  const uint8_t* labels = page + pattern::labels_offset(format);
  int any = 0;
  for (int t = 0; t < kPageTokens; ++t) {
    const int label = labels[t];
    entries[t] = label + (label > side.fixed ? side.first : 0);
    any |= label;
  }
  return any != 0;
}

// Four rows of one token, or four tokens of one row.
typedef float Four __attribute__((vector_size(16)));
static_assert(kEntryRows == 4, "tables keep four rows side by side");

#define KVASIR_INLINE inline __attribute__((always_inline))

KVASIR_INLINE void transpose(Four (&m)[4]) {
  const Four a = __builtin_shufflevector(m[0], m[1], 0, 4, 1, 5), b = __builtin_shufflevector(m[2], m[3], 0, 4, 1, 5);
  const Four c = __builtin_shufflevector(m[0], m[1], 2, 6, 3, 7), d = __builtin_shufflevector(m[2], m[3], 2, 6, 3, 7);
  m[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  m[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  m[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  m[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

// scores[row][t] += terms[row][entry of t], for kRows rows from the start of a block. The number of rows is a constant,
// so that the small matrices stay in registers.
template <int kRows>
void add_terms_block(const float* terms, const int* entries, float* scores) {
  for (int t = 0; t < kPageTokens; t += 4) {
    Four m[4];
    for (int i = 0; i < 4; ++i) memcpy(&m[i], terms + entries[t + i] * kEntryRows, sizeof m[i]);
    transpose(m);
    for (int r = 0; r < kRows; ++r) {
      Four score;
      memcpy(&score, scores + r * kPageTokens + t, sizeof score);
      score += m[r];
      memcpy(scores + r * kPageTokens + t, &score, sizeof score);
    }
  }
}

// sums[row][entry of t] += weight[row][t], likewise.
template <int kRows>
void collect_weights_block(const float* weights, int stride, const int* entries, float* sums) {
  for (int t = 0; t < kPageTokens; t += 4) {
    Four m[4] = {};
    for (int r = 0; r < kRows; ++r) memcpy(&m[r], weights + static_cast<size_t>(r) * stride + t, sizeof m[r]);
    transpose(m);
    for (int i = 0; i < 4; ++i) {
      float* entry = sums + entries[t + i] * kEntryRows;
      Four sum;
      memcpy(&sum, entry, sizeof sum);
      sum += m[i];
      memcpy(entry, &sum, sizeof sum);
    }
  }
}

inline void add_terms(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  int entries[kPageTokens];
  if (!page_entries(format, page, *queries.side, entries)) return;
  constexpr decltype(&add_terms_block<1>) kByRows[] = {add_terms_block<1>, add_terms_block<2>, add_terms_block<3>,
                                                       add_terms_block<4>};
  for (int first = 0; first < queries.count; first += kEntryRows) {
    const int rows = queries.count - first < kEntryRows ? queries.count - first : kEntryRows;
    kByRows[rows - 1](queries.terms + entry_index(first, 0, queries.entries), entries, scores + first * kPageTokens);
  }
}

inline void collect_weights(const PageFormat& format, const uint8_t* page, const TileInput& weights) {
  int entries[kPageTokens];
  if (!page_entries(format, page, *weights.side, entries)) return;
  constexpr decltype(&collect_weights_block<1>) kByRows[] = {collect_weights_block<1>, collect_weights_block<2>,
                                                             collect_weights_block<3>, collect_weights_block<4>};
  for (int first = 0; first < weights.count; first += kEntryRows) {
    const int rows = weights.count - first < kEntryRows ? weights.count - first : kEntryRows;
    kByRows[rows - 1](weights.rows + static_cast<size_t>(first) * weights.stride, weights.stride, entries,
                      weights.sums + entry_index(first, 0, weights.entries));
  }
}

#undef KVASIR_INLINE

// The codec whose pages hold the residuals, plus what the labels add.
template <const CodecKernels& kResiduals>
struct OnResiduals : Forward<kResiduals> {
  static void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
    kResiduals.key_scores(format, page, queries, scores);
    add_terms(format, page, queries, scores);
  }
  static void value_sum(const PageFormat& format, const uint8_t* page, const TileInput& weights, float* outputs) {
    kResiduals.value_sum(format, page, weights, outputs);
    collect_weights(format, page, weights);
  }
};

}  // namespace
}  // namespace kvasir
