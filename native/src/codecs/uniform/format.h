// Page layout of the uniform codec: parameters, then code planes.
//
//   offset 0                 for each group g: uint16 lo[entries], uint16 range[entries]
//   next multiple of 64      plane 0, plane 1 (3 and 16 bits have two)
//
// An entry is what has parameters of its own: a channel (CHANNEL axis) or a token (TOKEN axis). It has `groups` of
// them, each over `group` elements along the other dimension. Where the entries are the contracted index x, scales fold
// into the query or the weights ("folded"); where they are y, they scale the result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "codecs/code_plane.h"
#include "codecs/page_format.h"

namespace kvasir::uniform {

struct Layout {
  int x_size;       // contracted: channels of keys, tokens of values
  int y_size;       // the other
  int entries;      // parameters per group
  int groups;       // groups per entry
  int group;        // elements per group, the last may have fewer
  bool folded;      // entries are indexed by x, groups run along y; else the reverse
  int plane_count;  // 1 or 2
  CodePlane planes[2];
  size_t plane_offset[2];
  size_t bytes;

  KVASIR_HOST_DEVICE size_t lo_offset(int g) const { return static_cast<size_t>(g) * 4 * entries; }
  KVASIR_HOST_DEVICE size_t range_offset(int g) const { return lo_offset(g) + 2 * static_cast<size_t>(entries); }

  // The code of (x, y), from all planes.
  KVASIR_HOST_DEVICE int get(const uint8_t* page, int x, int y) const {
    int code = 0;
    for (int p = 0; p < plane_count; ++p) code |= planes[p].get(page + plane_offset[p], x, y) << planes[p].shift;
    return code;
  }
  KVASIR_HOST_DEVICE void put(uint8_t* page, int x, int y, int code) const {
    for (int p = 0; p < plane_count; ++p) planes[p].put(page + plane_offset[p], x, y, code);
  }
};

KVASIR_HOST_DEVICE static inline Layout layout_of(const PageFormat& format) {
  const bool keys = format.side == Side::kKeys;
  const bool by_channel = format.axis == Axis::kChannel;
  const int d = format.head_dim;
  Layout layout = {};
  layout.x_size = keys ? d : kPageTokens;
  layout.y_size = keys ? kPageTokens : d;
  layout.entries = by_channel ? d : kPageTokens;
  layout.group = format.group;
  layout.groups = ((by_channel ? kPageTokens : d) + format.group - 1) / format.group;
  layout.folded = keys == by_channel;

  // Widths that are no power of two are sums of those that are, low bits first; 16 bits are two bytes.
  const int first = format.bits == 3 ? 2 : format.bits == 16 ? 8 : format.bits;
  layout.plane_count = first == format.bits ? 1 : 2;
  size_t offset = (4 * static_cast<size_t>(layout.entries) * layout.groups + 63) / 64 * 64;
  for (int p = 0; p < layout.plane_count; ++p) {
    layout.planes[p] = {p == 0 ? first : format.bits - first, p == 0 ? 0 : first, layout.x_size, layout.y_size};
    layout.plane_offset[p] = offset;
    offset += layout.planes[p].bytes();
  }
  layout.bytes = offset;
  return layout;
}

}  // namespace kvasir::uniform
