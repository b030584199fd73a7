// How one side of a layer's pages lies in device memory, for the kernels that write, shrink and read whole pages.
//
//   SideFormat sides[2];
//   if (!fragment_sides(keys, values, sides)) canonical_sides(8, keys, values, sides);
//
// with `keys` and `values` as Codec::configure made them. A page is a run of bytes, 128-byte aligned; the part of kv
// head h begins at page + offset + h * stride. Fragments: head blocks of fragments.h, one per kv head. Canonical: the
// parts of docs/format.md, keys of all heads and then values of all heads.
#pragma once

#include <cstdint>

#include "codecs/page_format.h"
#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

struct SideFormat {
  PageFormat format;       // of elements kOwn: the side is somebody else's, and verbs leave it alone
  bool fragments = false;  // parts of fragments.h, else canonical ones
  int64_t offset = 0;      // of the first kv head's part in a page
  int64_t stride = 0;      // from one kv head's part to the next one's

  bool present() const { return format.elements != Elements::kOwn; }
  // What one kv head takes: all parts of fragments.h together, or the canonical part.
  int64_t bytes() const;
  // For fragments.
  PartLayout part() const;
  int parts() const;
};

// Whether a side has parts in fragments.h: head dim 64, 96, 128 or 256, and elements
//   kHalves    always
//   kCodes     of the default axis (keys per channel, values per token) and group (128, or d below)
//   kNarrowed  per token with the default group on both sides; keys also per channel with group 128
bool has_fragments(const PageFormat& side);

// The head block of a layer whose two sides have fragments: 16-bit codes are kWideBits, keys per token token_keys.
HeadLayout head_layout(const PageFormat& keys, const PageFormat& values);

// Both sides as head blocks; false, and nothing written, where one of them has no fragments.
bool fragment_sides(const PageFormat& keys, const PageFormat& values, SideFormat sides[2]);

// Both sides as docs/format.md has them. A side of kOwn takes no bytes here. Where parts of the other side vary in
// size, give page + offset of the first part of this side as the page, and kOwn for the other.
void canonical_sides(int kv_heads, const PageFormat& keys, const PageFormat& values, SideFormat sides[2]);

// Bytes of a page of which both sides are present.
int64_t page_bytes(int kv_heads, const SideFormat sides[2]);

}  // namespace kvasir::cuda
