#include "kernels/cuda/layout/side_format.h"

#include <algorithm>

#include "codecs/f16/format.h"
#include "codecs/uniform/format.h"

namespace kvasir::cuda {
namespace {

int width_of(const PageFormat& side) {
  if (side.elements == Elements::kHalves) return kFloat16Bits;
  return side.bits == 16 ? kWideBits : side.bits;
}

int64_t canonical_bytes(const PageFormat& side) {
  if (side.elements == Elements::kOwn) return 0;
  if (side.elements == Elements::kHalves) return static_cast<int64_t>(f16::page_bytes(side.head_dim));
  return static_cast<int64_t>(uniform::layout_of(side).bytes);
}

// The part of a side that stands alone: what it is does not depend on the other side.
HeadLayout own_layout(const SideFormat& side) { return head_layout(side.format, side.format); }

}  // namespace

bool has_fragments(const PageFormat& side) {
  if (side.elements == Elements::kOwn || !head_dim_supported(side.head_dim)) return false;
  if (side.elements == Elements::kHalves) return true;
  if (side.axis == Axis::kToken) {
    // Keys per token that were not narrowed would need nothing more, but nobody reads them.
    const bool wanted = side.side == Side::kValues || side.elements == Elements::kNarrowed;
    return wanted && side.group == std::min(side.head_dim, kValueSpan);
  }
  return side.side == Side::kKeys && side.group == kPageTokens;
}

HeadLayout head_layout(const PageFormat& keys, const PageFormat& values) {
  const bool token_keys = keys.elements != Elements::kHalves && keys.axis == Axis::kToken;
  HeadLayout layout = {keys.head_dim, width_of(keys), width_of(values), token_keys};
  layout.key_cells = keys.grid == Grid::kCells;
  layout.value_cells = values.grid == Grid::kCells;
  return layout;
}

PartLayout SideFormat::part() const {
  const HeadLayout layout = own_layout(*this);
  return format.side == Side::kKeys ? layout.key() : layout.value();
}

int SideFormat::parts() const {
  const HeadLayout layout = own_layout(*this);
  return format.side == Side::kKeys ? layout.key_parts() : layout.value_parts();
}

int64_t SideFormat::bytes() const {
  return fragments ? static_cast<int64_t>(parts()) * part().bytes() : canonical_bytes(format);
}

bool fragment_sides(const PageFormat& keys, const PageFormat& values, SideFormat sides[2]) {
  if (!has_fragments(keys) || !has_fragments(values)) return false;
  const HeadLayout layout = head_layout(keys, values);
  sides[0] = {keys, true, 0, layout.bytes()};
  sides[1] = {values, true, layout.value_offset(0), layout.bytes()};
  return true;
}

void canonical_sides(int kv_heads, const PageFormat& keys, const PageFormat& values, SideFormat sides[2]) {
  const int64_t key_bytes = canonical_bytes(keys);
  sides[0] = {keys, false, 0, key_bytes};
  sides[1] = {values, false, kv_heads * key_bytes, canonical_bytes(values)};
}

int64_t page_bytes(int kv_heads, const SideFormat sides[2]) { return kv_heads * (sides[0].bytes() + sides[1].bytes()); }

}  // namespace kvasir::cuda
