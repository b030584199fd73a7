#include "kernels/cuda/pages/shrink_step.cuh"

#include "codecs/uniform/format.h"

namespace kvasir::cuda {
namespace {

static_assert(kGroupBytes == 1 << 9 && CodePlane::kVectorBytes == 1 << 6, "chunk_bits below");

bool make_side(const SideFormat& from, const SideFormat& to, ShrinkSide* out) {
  ShrinkSide side = {};
  side.from_offset = static_cast<uint32_t>(from.offset);
  side.from_stride = static_cast<uint32_t>(from.stride);
  side.to_offset = static_cast<uint32_t>(to.offset);
  side.to_stride = static_cast<uint32_t>(to.stride);
  const bool same = from.format.elements == to.format.elements && from.fragments == to.fragments &&
                    from.format.axis == to.format.axis && from.format.group == to.format.group &&
                    from.format.head_dim == to.format.head_dim;
  if (!same || from.format.elements == Elements::kOwn) return false;
  side.per_stride = reciprocal_of(side.to_stride);
  const int parts = from.fragments ? from.parts() : 1;
  side.from_part = static_cast<uint32_t>(from.bytes() / parts);
  side.to_part = static_cast<uint32_t>(to.bytes() / parts);
  if (from.format.bits == to.format.bits) {
    *out = side;
    return true;
  }
  if (from.format.elements != Elements::kNarrowed || from.format.bits != 2 * to.format.bits) return false;
  if (parts > 2) return false;
  side.to_bits = to.format.bits;
  side.shift = progressive::shift_of(to.format);
  if (from.fragments) {
    side.parameter_bytes = static_cast<uint32_t>(from.part().parameter_bytes());
    // Halves of bytes are of neighbouring groups, or of groups that are all steps of x apart.
    int groups = to.part().fours() ? to.part().x_size / 32 : 1;
    for (side.chunk_bits = 9; groups > 1; groups /= 2) ++side.chunk_bits;
    side.distance = 1u << side.chunk_bits;
    side.pitch = 2 * side.distance;
  } else {
    const uniform::Layout layout = uniform::layout_of(from.format);
    side.parameter_bytes = static_cast<uint32_t>(layout.plane_offset[0]);
    side.entries = static_cast<uint32_t>(layout.entries);
    const bool planes = layout.plane_count == 2;
    side.chunk_bits = 6;
    side.pitch = (planes ? 1 : 2) * CodePlane::kVectorBytes;
    side.distance = planes ? static_cast<uint32_t>(layout.planes[0].bytes()) : CodePlane::kVectorBytes;
  }
  *out = side;
  return true;
}

}  // namespace

bool plan_shrink(int kv_heads, const SideFormat from[2], const SideFormat to[2], ShrinkPlan* plan) {
  ShrinkPlan made = {};
  for (int i = 0; i < 2; ++i) {
    if (!make_side(from[i], to[i], &made.sides[i])) return false;
    made.modifies |= made.sides[i].to_bits != 0 && made.sides[i].shift == Shift::kModified;
  }
  if (from[0].fragments != from[1].fragments || page_bytes(kv_heads, from) > INT32_MAX) return false;
  made.vectors = static_cast<uint32_t>(page_bytes(kv_heads, to) / kVectorBytes);
  made.head_blocks = from[0].fragments;
  *plan = made;
  return true;
}

}  // namespace kvasir::cuda
