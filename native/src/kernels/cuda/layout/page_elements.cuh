// Elements of stored pages, four at a time: those whose codes share a word, so that finding it is done once for them.
//
// A quad is one y and four x: x0 .. x0 + 3 of a canonical part, x0, x0 + 8, x0 + 1 and x0 + 9 of fragments, in the
// order of a word's bytes. Decoded is what the host decodes, bit for bit, where a * b + c is not contracted.
#pragma once

#include "codecs/uniform/format.h"
#include "codecs/uniform/formula.h"
#include "kernels/cuda/layout/side_format.h"

namespace kvasir::cuda {

// One side of a page, as its elements are found. x and y as in fragments.h, counted in one part.
struct ElementSide {
  int64_t offset, stride;
  Elements elements;
  bool fragments, keys;
  int head_dim;
  int x_size, y_size;
  PartLayout part;         // of fragments
  int parts;               // one after the other, 128 channels each; canonical sides have one
  uniform::Layout layout;  // of canonical codes
  bool x_scales;           // parameters belong to x, else to y
  int group_bits;          // canonical: position along the group axis >> group_bits is the group
  int scales;              // parameters of a part
  uniform::Codes codes;

  KVASIR_HOST_DEVICE int quads() const { return x_size / 4; }
};

// An element is base + code * step.
struct Scale {
  float base, step;
};

constexpr int kMostScales = 1024;  // of a side: 256 channels in groups of 32 tokens, or 128 tokens in groups of 32

inline ElementSide element_side(const SideFormat& format) {
  ElementSide side = {};
  side.elements = format.format.elements;
  if (side.elements == Elements::kOwn) return side;
  side.offset = format.offset;
  side.stride = format.stride;
  side.fragments = format.fragments;
  side.keys = format.format.side == Side::kKeys;
  side.head_dim = format.format.head_dim;
  side.codes = uniform::codes_of(format.format.bits, format.format.grid);
  side.parts = 1;
  if (format.fragments) {
    side.part = format.part();
    side.parts = format.parts();
    side.x_size = side.part.x_size;
    side.y_size = side.part.y_size;
    side.scales = side.part.parameters();
    side.x_scales = !side.part.y_parameters;
    return side;
  }
  side.x_size = side.keys ? side.head_dim : kPageTokens;
  side.y_size = side.keys ? kPageTokens : side.head_dim;
  if (side.elements == Elements::kHalves) return side;
  side.layout = uniform::layout_of(format.format);
  side.scales = side.layout.entries * side.layout.groups;
  side.x_scales = side.layout.folded;
  // Groups are 32, 64 or 128 elements, or one for all.
  side.group_bits = side.layout.groups == 1 ? 30 : 5;
  while (side.layout.groups > 1 && 1 << side.group_bits < side.layout.group) ++side.group_bits;
  return side;
}

KVASIR_HOST_DEVICE inline uint16_t load_half(const uint8_t* p) { return *reinterpret_cast<const uint16_t*>(p); }
KVASIR_HOST_DEVICE inline uint32_t load_word(const uint8_t* p) { return *reinterpret_cast<const uint32_t*>(p); }

// Parameter i of a part.
KVASIR_HOST_DEVICE inline Scale scale_at(const ElementSide& side, const uint8_t* part, int i) {
  uint16_t lo, range;
  if (side.fragments) {
    const uint8_t* stored = part + side.part.parameter_byte(i);
    range = load_half(stored);
    lo = load_half(stored + 2);
  } else {
    const int entry = i % side.layout.entries, group = i / side.layout.entries;
    lo = load_half(part + side.layout.lo_offset(group) + 2 * entry);
    range = load_half(part + side.layout.range_offset(group) + 2 * entry);
  }
  const float step = uniform::step_of(half_to_float(range), side.codes);
  return {uniform::base_of(half_to_float(lo), step, side.codes), step};
}

KVASIR_HOST_DEVICE inline int scale_index(const ElementSide& side, int x, int y) {
  if (side.fragments) return side.x_scales ? x : y;
  const int entry = side.x_scales ? x : y, position = side.x_scales ? y : x;
  return (position >> side.group_bits) * side.layout.entries + entry;
}

// First x of quad i, and how much further the x of its byte j is.
KVASIR_HOST_DEVICE inline int quad_x(const ElementSide& side, int i) {
  return side.fragments ? i / 4 * 16 + 2 * (i % 4) : 4 * i;
}
KVASIR_HOST_DEVICE inline int quad_step(const ElementSide& side, int j) {
  return side.fragments ? j / 2 + 8 * (j % 2) : j;
}

// Where the word of a quad stands in plane p, from the start of the part, and the lowest bit of its first code.
KVASIR_HOST_DEVICE inline Place word_place(const ElementSide& side, int p, int x, int y) {
  if (side.fragments) {
    const Place place = side.part.code_place(p, x, y);
    return {side.part.parameter_bytes() + place.byte, place.bit};
  }
  const CodePlane& plane = side.layout.planes[p];
  return {static_cast<int>(side.layout.plane_offset[p] + plane.byte_of(x, y)), plane.bit_of(x)};
}

// Four elements of the codec f16.
KVASIR_HOST_DEVICE inline void decode_halves(const ElementSide& side, const uint8_t* part, int x, int y,
                                             float (&out)[4]) {
  for (int j = 0; j < 4; ++j) {
    const int at = x + quad_step(side, j);
    const int token = side.keys ? y : at, channel = side.keys ? at : y;
    out[j] = half_to_float(
        load_half(part + (side.fragments ? side.part.float16_byte(at, y) : 2 * (token * side.head_dim + channel))));
  }
}

// Four elements of a part with codes; `scales` are scale_at of all i.
KVASIR_HOST_DEVICE inline void decode_codes(const ElementSide& side, const uint8_t* part, const Scale* scales, int x,
                                            int y, float (&out)[4]) {
  const int planes = side.fragments ? side.part.planes() : side.layout.plane_count;
  uint32_t codes[4] = {};
  for (int p = 0; p < planes; ++p) {
    const Place place = word_place(side, p, x, y);
    const int bits = side.fragments ? side.part.plane_bits(p) : side.layout.planes[p].bits;
    const int shift = side.fragments ? side.part.plane_shift(p) : side.layout.planes[p].shift;
    const uint32_t word = load_word(part + place.byte) >> place.bit;
    for (int j = 0; j < 4; ++j) codes[j] |= (word >> 8 * j & ((1u << bits) - 1)) << shift;
  }
  for (int j = 0; j < 4; ++j) {
    const Scale scale = scales[scale_index(side, x + quad_step(side, j), y)];
    out[j] = uniform::decode_element(static_cast<int>(codes[j]), scale.base, scale.step);
  }
}

}  // namespace kvasir::cuda
