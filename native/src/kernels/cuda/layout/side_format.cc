#include "kernels/cuda/layout/side_format.h"

#include <algorithm>

#include "codecs/f16/format.h"
#include "codecs/uniform/format.h"

namespace kvasir::cuda {
namespace {

int width_of(const SideCodec& side) {
  if (side.codec == StoredCodec::kFloat16) return kFloat16Bits;
  return side.format.bits == 16 ? kWideBits : side.format.bits;
}

bool token_keys(const SideCodec& keys) {
  return keys.codec != StoredCodec::kFloat16 && keys.format.axis == Axis::kToken;
}

int64_t canonical_bytes(const SideCodec& side) {
  if (side.codec == StoredCodec::kNone) return 0;
  if (side.codec == StoredCodec::kFloat16) return static_cast<int64_t>(f16::page_bytes(side.format.head_dim));
  return static_cast<int64_t>(uniform::layout_of(side.format).bytes);
}

// The part of a side that stands alone: what it is does not depend on the other side.
HeadLayout own_layout(const SideFormat& side) {
  const SideCodec codec = {side.codec, side.format};
  return head_layout(codec, codec);
}

}  // namespace

bool has_fragments(const SideCodec& side) {
  const PageFormat& format = side.format;
  if (side.codec == StoredCodec::kNone || !head_dim_supported(format.head_dim)) return false;
  if (side.codec == StoredCodec::kFloat16) return true;
  if (format.axis == Axis::kToken) {
    // Uniform keys per token would need nothing more, but nobody reads them.
    const bool wanted = format.side == Side::kValues || side.codec == StoredCodec::kProgressive;
    return wanted && format.group == std::min(format.head_dim, kValueSpan);
  }
  return format.side == Side::kKeys && format.group == kPageTokens;
}

HeadLayout head_layout(const SideCodec& keys, const SideCodec& values) {
  return {keys.format.head_dim, width_of(keys), width_of(values), token_keys(keys)};
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
  return fragments ? static_cast<int64_t>(parts()) * part().bytes() : canonical_bytes({codec, format});
}

bool fragment_sides(const SideCodec& keys, const SideCodec& values, SideFormat sides[2]) {
  if (!has_fragments(keys) || !has_fragments(values)) return false;
  const HeadLayout layout = head_layout(keys, values);
  sides[0] = {keys.codec, keys.format, true, 0, layout.bytes()};
  sides[1] = {values.codec, values.format, true, layout.value_offset(0), layout.bytes()};
  return true;
}

void canonical_sides(int kv_heads, const SideCodec& keys, const SideCodec& values, SideFormat sides[2]) {
  const int64_t key_bytes = canonical_bytes(keys);
  sides[0] = {keys.codec, keys.format, false, 0, key_bytes};
  sides[1] = {values.codec, values.format, false, kv_heads * key_bytes, canonical_bytes(values)};
}

int64_t page_bytes(int kv_heads, const SideFormat sides[2]) { return kv_heads * (sides[0].bytes() + sides[1].bytes()); }

}  // namespace kvasir::cuda
