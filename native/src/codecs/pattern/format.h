// Page layout of the pattern codec: a uniform page of residuals, then a label per token.
//
//   offset 0             residuals x - pattern[label], as the uniform codec stores them
//   residual bytes       uint8 label[kPageTokens]; 0: no pattern
#pragma once

#include <cstddef>

#include "codecs/uniform/format.h"

namespace kvasir::pattern {

// Indices into PageFormat::numbers.
enum Number {
  kPatterns,       // mined by k-means
  kSquaredMetric,  // 1: match by squared distance, 0: by min-max distance
  kNewPatterns,    // 1: every page after the prompt's adds its centre
  kAcceptTest,     // 1: keys: labels must lower the page's squared ranges
  kAcceptRatio,    // values: largest ratio of flattened to raw range; negative: no test
  kNeverRaw,       // 0: no pattern is a match like others, where it is nearest; 1: never
};

KVASIR_HOST_DEVICE static inline int mined_patterns(const PageFormat& format) {
  return static_cast<int>(format.numbers[kPatterns]);
}
KVASIR_HOST_DEVICE static inline bool by_squares(const PageFormat& format) {
  return format.numbers[kSquaredMetric] != 0;
}
KVASIR_HOST_DEVICE static inline bool adds_patterns(const PageFormat& format) {
  return format.numbers[kNewPatterns] != 0;
}
KVASIR_HOST_DEVICE static inline bool tests_labels(const PageFormat& format) {
  return format.numbers[kAcceptTest] != 0;
}

KVASIR_HOST_DEVICE static inline bool matches_raw(const PageFormat& format) { return format.numbers[kNeverRaw] == 0; }

// Most points that patterns are mined from; a longer prompt is sampled.
constexpr int64_t kMiningPoints = 16384;

KVASIR_HOST_DEVICE static inline size_t labels_offset(const PageFormat& format) {
  return uniform::layout_of(format).bytes;
}

KVASIR_HOST_DEVICE static inline size_t page_bytes(const PageFormat& format) {
  return labels_offset(format) + kPageTokens;
}
static_assert(kPageTokens % 64 == 0, "page parts are multiples of 64 bytes");

}  // namespace kvasir::pattern
