// Pages of min-max codes, one element at a time: what the codecs that share the uniform layout have in common.
#pragma once

#include <algorithm>
#include <cstring>

#include "codecs/uniform/format.h"
#include "codecs/uniform/formula.h"

namespace kvasir::scalar {

// Where element (entry, position along the group axis) stands in the row matrix and in the code matrix.
struct Element {
  size_t row_index;  // into [kPageTokens][head_dim]
  int x, y;
};

inline Element element_at(const PageFormat& format, const uniform::Layout& layout, int entry, int position) {
  const bool by_channel = format.axis == Axis::kChannel;
  const int token = by_channel ? position : entry;
  const int channel = by_channel ? entry : position;
  return {static_cast<size_t>(token) * format.head_dim + channel, layout.folded ? entry : position,
          layout.folded ? position : entry};
}

// code_of(x, lo, range) gives the code of an element.
template <class CodeOf>
void encode_page(const PageFormat& format, const float* rows, const CodeOf& code_of, uint8_t* page) {
  const uniform::Layout layout = uniform::layout_of(format);
  const int positions = format.axis == Axis::kChannel ? kPageTokens : format.head_dim;
  std::memset(page, 0, layout.bytes);
  for (int g = 0; g < layout.groups; ++g) {
    const int begin = g * layout.group;
    const int end = std::min(begin + layout.group, positions);
    for (int entry = 0; entry < layout.entries; ++entry) {
      float lowest = rows[element_at(format, layout, entry, begin).row_index];
      float highest = lowest;
      for (int i = begin + 1; i < end; ++i) {
        const float x = rows[element_at(format, layout, entry, i).row_index];
        lowest = std::min(lowest, x);
        highest = std::max(highest, x);
      }
      const uniform::Parameters stored = uniform::parameters_of(lowest, highest);
      std::memcpy(page + layout.lo_offset(g) + 2 * entry, &stored.lo, 2);
      std::memcpy(page + layout.range_offset(g) + 2 * entry, &stored.range, 2);
      for (int i = begin; i < end; ++i) {
        const Element e = element_at(format, layout, entry, i);
        layout.put(page, e.x, e.y, code_of(rows[e.row_index], half_to_float(stored.lo), half_to_float(stored.range)));
      }
    }
  }
}

}  // namespace kvasir::scalar
