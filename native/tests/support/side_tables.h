// Side tables for tests of kernels and codecs: random vectors, the view of a page over them, and pages with labels.
#pragma once

#include <vector>

#include "codecs/page_format.h"
#include "reference/half.h"
#include "reference/pattern_page.h"
#include "support/data.h"
#include "support/formats.h"

namespace support {

// What a page sees: `fixed` vectors, and of the `added` later ones those that fit.
struct TableShape {
  int fixed;
  int added;      // up to and including the page's own
  int later = 0;  // added by pages after it
};

// No pattern at all, few, as many as fit, more than fit, and vectors of later pages.
constexpr TableShape kTableShapes[] = {{0, 0, 0}, {2, 0, 3}, {32, 7, 0}, {64, 191, 5}, {32, 400, 30}};

// One kv head's table, as the reference has it and as kernels take it.
struct Table {
  reference::PatternTable reference;
  std::vector<std::vector<uint16_t>> halves;
  std::vector<const uint16_t*> pointers;
  kvasir::SideView view;
  int64_t page;  // the page that sees the view
};

inline Table make_table(const TableShape& shape, uint64_t seed, int head_dim, double scale = 1.0) {
  Table table;
  const int count = shape.fixed + shape.added + shape.later;
  Random random(seed);
  table.reference = {head_dim, shape.fixed, 3, {}};
  table.page = 3 + shape.added - 1;
  for (int v = 0; v < count; ++v) {
    table.halves.emplace_back();
    for (int c = 0; c < head_dim; ++c) {
      const uint16_t half = reference::half_nearest(scale * random.normal());
      table.halves.back().push_back(half);
      table.reference.vectors.push_back(static_cast<float>(reference::half_value(half)));
    }
  }
  for (const auto& vector : table.halves) table.pointers.push_back(vector.data());
  const int room = 255 - shape.fixed;
  table.view.vectors = table.pointers.data();
  table.view.count = count;
  table.view.fixed = shape.fixed;
  table.view.first = std::max(0, shape.added - room);
  table.view.visible = table.reference.labels(table.page);
  return table;
}

// Any labels that the page may use; one token in three has none.
inline std::vector<uint8_t> random_labels(const Table& table, uint64_t seed) {
  Random random(seed);
  std::vector<uint8_t> labels(reference::kTokens, 0);
  for (uint8_t& label : labels) {
    if (!random.chance(1.0 / 3)) label = static_cast<uint8_t>(random.below(table.view.visible + 1));
  }
  labels[77] = static_cast<uint8_t>(table.view.visible);
  return labels;
}

}  // namespace support
