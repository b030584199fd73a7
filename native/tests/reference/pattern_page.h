// Codec pattern of docs/format.md: a uniform page of residuals, a label per token, and the side table that labels mean.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/page.h"
#include "reference/uniform_page.h"

namespace reference {

// The side table of one kv head: first the mined vectors, then one for each page from `first_adding_page` on.
struct PatternTable {
  int head_dim = 0;
  int fixed = 0;                  // mined vectors
  int64_t first_adding_page = 0;  // pages before it were sealed together with the first
  std::vector<float> vectors;     // [count][head_dim]

  int count() const { return head_dim == 0 ? 0 : static_cast<int>(vectors.size()) / head_dim; }
  // Vectors that pages up to `page` have added.
  int added(int64_t page) const {
    const int64_t pages = std::max<int64_t>(0, page - first_adding_page + 1);
    return static_cast<int>(std::min<int64_t>(pages, count() - fixed));
  }
  // Labels that page `page` may use are 0..labels(page).
  int labels(int64_t page) const { return std::min(255, fixed + added(page)); }
  // Null for label 0.
  const float* vector(int64_t page, int label) const {
    if (label == 0) return nullptr;
    const int room = 255 - fixed;
    const int index = label <= fixed ? label - 1 : fixed + std::max(0, added(page) - room) + label - fixed - 1;
    return vectors.data() + static_cast<size_t>(index) * head_dim;
  }
};

namespace pattern {

inline size_t labels_offset(const PageShape& s) { return uniform::page_bytes(s); }

inline PageShape shape(Side side, int bits, int head_dim, const Options& options) {
  PageShape s{side, head_dim, bits, side == Side::kKeys ? 0 : 1, 0};
  const int longest = s.axis == 0 ? kTokens : head_dim;
  const auto group = options.find("group");
  s.group = std::min(longest, group == options.end() ? 128 : static_cast<int>(group->second));
  s.cells = uniform::wants_cells(bits, options);
  return s;
}

// The residuals of the elements, in float32.
inline std::vector<float> residuals(const PageShape& s, const float* rows, const uint8_t* labels,
                                    const PatternTable& table, int64_t page) {
  std::vector<float> rest(rows, rows + kTokens * s.head_dim);
  for (int t = 0; t < kTokens; ++t) {
    const float* vector = table.vector(page, labels[t]);
    for (int c = 0; vector != nullptr && c < s.head_dim; ++c) rest[t * s.head_dim + c] -= vector[c];
  }
  return rest;
}

inline std::vector<uint8_t> encode_residuals(const PageShape& s, const float* rows) {
  std::vector<uint8_t> page = uniform::encode(s, rows);
  page.resize(page.size() + kTokens, 0);
  return page;
}

// The page of these elements once labels are chosen: the format leaves no other choice.
inline std::vector<uint8_t> encode(const PageShape& s, const float* rows, const uint8_t* labels,
                                   const PatternTable& table, int64_t page) {
  std::vector<uint8_t> bytes = encode_residuals(s, residuals(s, rows, labels, table, page).data());
  std::copy_n(labels, kTokens, bytes.begin() + static_cast<std::ptrdiff_t>(labels_offset(s)));
  return bytes;
}

inline std::vector<float> decode(const PageShape& s, const uint8_t* bytes, const PatternTable& table, int64_t page) {
  std::vector<float> rows = uniform::decode(s, bytes).rows;
  for (int t = 0; t < kTokens; ++t) {
    const float* vector = table.vector(page, bytes[labels_offset(s) + t]);
    for (int c = 0; vector != nullptr && c < s.head_dim; ++c) rows[t * s.head_dim + c] += vector[c];
  }
  return rows;
}

// Range over channels of x - m, and the sum of its squares; m may be null. Float32, channel by channel.
inline float residual_range(const float* x, const float* m, int d) {
  float low = std::numeric_limits<float>::infinity(), high = -low;
  for (int c = 0; c < d; ++c) {
    const float rest = m == nullptr ? x[c] : x[c] - m[c];
    low = std::min(low, rest);
    high = std::max(high, rest);
  }
  return high - low;
}

inline float residual_square(const float* x, const float* m, int d) {
  float sum = 0.0f;
  for (int c = 0; c < d; ++c) {
    const float rest = m == nullptr ? x[c] : x[c] - m[c];
    const float square = rest * rest;
    sum += square;
  }
  return sum;
}

// The label whose vector is nearest to x, the first of equals. raw: whether 0, no vector, is one of them.
inline int nearest_label(const float* x, const PatternTable& table, int64_t page, bool squared, bool raw = true) {
  const auto distance = squared ? residual_square : residual_range;
  int best = 0;
  float least = raw ? distance(x, nullptr, table.head_dim) : std::numeric_limits<float>::infinity();
  for (int label = 1; label <= table.labels(page); ++label) {
    const float each = distance(x, table.vector(page, label), table.head_dim);
    if (each >= least) continue;
    least = each;
    best = label;
  }
  return best;
}

// Groups, and each other option at least once; what the options other than the group do is no matter of the layout.
inline std::vector<Options> variants(Side, int head_dim) {
  std::vector<Options> list = {{},
                               {{"grid", 0.0}},
                               {{"grid", 1.0}, {"group", 32.0}},
                               {{"group", 32.0}},
                               {{"patterns", 2.0}, {"metric", 1.0}},
                               {{"new_patterns", 0.0}, {"accept", 0.0}, {"alpha", 0.0}},
                               {{"accept", 0.0}, {"alpha", 0.0}, {"raw", 0.0}}};
  if (head_dim > 64) list.push_back({{"group", 64.0}, {"patterns", 64.0}, {"alpha", 0.01}});
  return list;
}

}  // namespace pattern

inline ReferenceCodec pattern_reference() {
  return {{"group", "grid", "patterns", "metric", "new_patterns", "accept", "alpha", "raw"},
          pattern::variants,
          pattern::shape,
          uniform::decode,
          pattern::encode_residuals,
          kTokens};
}

}  // namespace reference
