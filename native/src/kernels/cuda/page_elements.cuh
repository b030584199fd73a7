// Single elements of stored pages.
#pragma once

#include "codecs/uniform/format.h"
#include "codecs/uniform/formula.h"
#include "kernels/cuda/side_format.h"

namespace kvasir::cuda {

// One side of a page, as its elements are found.
struct ElementSide {
  int64_t offset, stride;
  StoredCodec codec;
  bool fragments, keys, per_token;
  PartLayout part;         // of fragments
  int parts;               // of fragments: a channel's part is channel / 128 where there are several
  uniform::Layout layout;  // of canonical codes
  int levels;
};

inline ElementSide element_side(const SideFormat& format) {
  ElementSide side = {};
  side.codec = format.codec;
  if (side.codec == StoredCodec::kNone) return side;
  side.offset = format.offset;
  side.stride = format.stride;
  side.fragments = format.fragments;
  side.keys = format.format.side == Side::kKeys;
  side.per_token = format.format.axis == Axis::kToken;
  side.levels = uniform::levels_of(format.format.bits);
  if (format.fragments) {
    side.part = format.part();
    side.parts = format.parts();
  } else if (side.codec != StoredCodec::kFloat16) {
    side.layout = uniform::layout_of(format.format);
  }
  return side;
}

struct Coded {
  int code;
  uint16_t lo, range;
};

KVASIR_HOST_DEVICE inline uint16_t load_half(const uint8_t* p) { return *reinterpret_cast<const uint16_t*>(p); }

KVASIR_HOST_DEVICE inline Coded canonical_code(const ElementSide& side, const uint8_t* part, int token, int channel) {
  const uniform::Layout& layout = side.layout;
  const int entry = side.per_token ? token : channel;
  const int g = (side.per_token ? channel : token) / layout.group;
  const int code = side.keys ? layout.get(part, channel, token) : layout.get(part, token, channel);
  return {code, load_half(part + layout.lo_offset(g) + 2 * entry),
          load_half(part + layout.range_offset(g) + 2 * entry)};
}

// A channel's own part, and its place there.
KVASIR_HOST_DEVICE inline const uint8_t* own_part(const ElementSide& side, const uint8_t* first, int* channel) {
  if (side.parts == 1) return first;
  const int index = *channel / kValueSpan;
  *channel %= kValueSpan;
  return first + static_cast<int64_t>(index) * side.part.bytes();
}

KVASIR_HOST_DEVICE inline Coded fragment_code(const ElementSide& side, const uint8_t* part, int token, int channel) {
  const PartLayout& layout = side.part;
  const int x = side.keys ? channel : token, y = side.keys ? token : channel;
  int code = 0;
  for (int p = 0; p < layout.planes(); ++p) {
    const Place place = layout.code_place(p, x, y);
    const int bits = part[layout.parameter_bytes() + place.byte] >> place.bit & ((1 << layout.plane_bits(p)) - 1);
    code |= bits << layout.plane_shift(p);
  }
  const uint8_t* parameters = part + layout.parameter_byte(layout.y_parameters ? y : x);
  return {code, load_half(parameters + 2), load_half(parameters)};
}

// What the host decodes, bit for bit, where a * b + c is not contracted.
KVASIR_HOST_DEVICE inline float element_at(const ElementSide& side, const uint8_t* part, int head_dim, int token,
                                           int channel) {
  if (side.codec == StoredCodec::kFloat16) {
    if (!side.fragments) return half_to_float(load_half(part + 2 * (token * head_dim + channel)));
    const uint8_t* own = own_part(side, part, &channel);
    return half_to_float(
        load_half(own + (side.keys ? side.part.float16_byte(channel, token) : side.part.float16_byte(token, channel))));
  }
  Coded coded;
  if (side.fragments) {
    const uint8_t* own = own_part(side, part, &channel);
    coded = fragment_code(side, own, token, channel);
  } else {
    coded = canonical_code(side, part, token, channel);
  }
  const float step = uniform::step_of(half_to_float(coded.range), side.levels);
  return uniform::decode_element(coded.code, half_to_float(coded.lo), step);
}

}  // namespace kvasir::cuda
