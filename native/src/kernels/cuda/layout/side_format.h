// How one side of a layer's pages lies in device memory, for the kernels that write, shrink and read whole pages.
//
//   SideFormat sides[2];
//   if (!fragment_sides({StoredCodec::kUniform, keys}, {StoredCodec::kUniform, values}, sides)) {
//     canonical_sides(8, {StoredCodec::kUniform, keys}, {StoredCodec::kUniform, values}, sides);
//   }
//
// with `keys` and `values` as Codec::configure made them. A page is a run of bytes, 128-byte aligned; the part of kv
// head h begins at page + offset + h * stride. Fragments: head blocks of fragments.h, one per kv head. Canonical: the
// parts of docs/format.md, keys of all heads and then values of all heads.
#pragma once

#include <cstdint>

#include "codecs/page_format.h"
#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

enum class StoredCodec : int {
  kNone,  // the side is somebody else's: verbs leave it alone
  kFloat16,
  kUniform,
  kProgressive,
};

struct SideCodec {
  StoredCodec codec;
  PageFormat format;
};

struct SideFormat {
  StoredCodec codec = StoredCodec::kNone;
  PageFormat format;
  bool fragments = false;  // parts of fragments.h, else canonical ones
  int64_t offset = 0;      // of the first kv head's part in a page
  int64_t stride = 0;      // from one kv head's part to the next one's

  // Of one kv head: all parts of fragments.h together, or the canonical part.
  int64_t bytes() const;
  // For fragments.
  PartLayout part() const;
  int parts() const;
};

// Whether a side of this codec and format has parts in fragments.h: head dim 64, 96, 128 or 256, and
//   kFloat16      always
//   kUniform      1, 2, 3, 4, 8 or 16 bits, default axis (keys per channel, values per token) and group (128, or d
//   below) kProgressive  2, 4, 8 or 16 bits, per token with the default group on both sides; keys also per channel with
//   group 128
bool has_fragments(const SideCodec& side);

// The head block of a layer whose two sides have fragments: 16-bit codes are kWideBits, keys per token token_keys.
HeadLayout head_layout(const SideCodec& keys, const SideCodec& values);

// Both sides as head blocks; false, and nothing written, where one of them has no fragments (kNone has none).
bool fragment_sides(const SideCodec& keys, const SideCodec& values, SideFormat sides[2]);

// Both sides as docs/format.md has them. A side of kNone takes no bytes here. Where parts of the other side vary in
// size (codec tiered), give page + offset of the first part of this side as the page, and kNone for the other.
void canonical_sides(int kv_heads, const SideCodec& keys, const SideCodec& values, SideFormat sides[2]);

// Bytes of a page that has no side of kNone.
int64_t page_bytes(int kv_heads, const SideFormat sides[2]);

}  // namespace kvasir::cuda
