#include <cstring>

#include "engine/engine.h"

namespace kvasir {

// Part by part, from the front: each lands at or before where it was.
size_t shrink_page(const LayerPlan& plan, const ShrinkingPage& page) {
  const PageShape& from = *page.from;
  const PageShape& to = *page.to;
  size_t end = to.table_bytes();
  size_t next = page.offsets ? page.offsets[0] : 0;
  for (int number = 0; number < from.parts(); ++number) {
    const int side = number >= from.parts(Side::kKeys);
    // The offsets still say where parts were, but for those that have moved.
    const size_t bytes = page.offsets ? page.offsets[number + 1] - next : from.formats[side].page_bytes;
    const uint8_t* part = page.data + next;
    uint8_t* out = page.data + end;
    next += bytes;
    if (page.offsets) page.offsets[number] = static_cast<uint32_t>(end);
    if (from.formats[side].width() == to.formats[side].width()) {
      std::memmove(out, part, bytes);
      end += bytes;
    } else {
      plan.attention.codecs[side].shrink(from.formats[side], to.formats[side], part, out);
      end += to.formats[side].page_bytes;
    }
  }
  if (page.offsets) page.offsets[to.parts()] = static_cast<uint32_t>(end);
  return end;
}

}  // namespace kvasir
