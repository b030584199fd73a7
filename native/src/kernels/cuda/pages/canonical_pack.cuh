// Parameters and codes of a canonical part (docs/format.md), a group and a 32-bit lane of a plane at a time: any head
// dim, axis, group and width.
#pragma once

#include <algorithm>

#include "codecs/uniform/format.h"
#include "kernels/cuda/layout/side_format.h"
#include "kernels/cuda/pages/quantise.cuh"

namespace kvasir::cuda {

// One side of the codec uniform or progressive.
struct CodedSide {
  uniform::Layout layout;
  int head_dim;
  int bits;
  uniform::Codes codes;
  bool exact;  // progressive
  bool keys, per_token;
  progressive::Shift shift;  // of progressive codes from end to end

  KVASIR_HOST_DEVICE bool cut() const { return exact && !codes.cells && shift != progressive::Shift::kEquivalent; }
};

inline CodedSide coded_side(const SideFormat& format) {
  return {uniform::layout_of(format.format),
          format.format.head_dim,
          format.format.bits,
          uniform::codes_of(format.format.bits, format.format.grid),
          format.format.elements == Elements::kNarrowed,
          format.format.side == Side::kKeys,
          format.format.axis == Axis::kToken,
          progressive::shift_of(format.format)};
}

KVASIR_HOST_DEVICE inline float row_element(const uint16_t* rows, int64_t index) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(__ldg(rows + index)));
#else
  return half_to_float(rows[index]);
#endif
}

// Parameters of group i = group * entries + entry.
KVASIR_HOST_DEVICE inline uniform::Parameters group_parameters(const CodedSide& side, const uint16_t* rows, int i) {
  const uniform::Layout& layout = side.layout;
  const int entry = i % layout.entries, begin = i / layout.entries * layout.group;
  const int positions = side.per_token ? side.head_dim : kPageTokens;
  const int end = begin + layout.group < positions ? begin + layout.group : positions;
  const int64_t step = side.per_token ? 1 : side.head_dim;
  const int64_t base = side.per_token ? static_cast<int64_t>(entry) * side.head_dim : entry;
  float lowest = row_element(rows, base + begin * step), highest = lowest;
  for (int at = begin + 1; at < end; ++at) {
    const float x = row_element(rows, base + at * step);
    lowest = fminf(lowest, x);
    highest = fmaxf(highest, x);
  }
  return uniform::parameters_of(lowest, highest);
}

KVASIR_HOST_DEVICE inline uint32_t canonical_code(const CodedSide& side, float x, const Quantiser& q,
                                                  const double* inverse16) {
  uint32_t code = 0;
  if (!side.exact) {
    code = uniform_code(x, q.lo, q.inverse, side.codes.cells, side.codes.last);
  } else if (side.bits == 16) {
    code = progressive_code16(x, q.lo, *inverse16, &q.range, side.codes.cells);
  } else if (side.cut()) {
    code = cut_code(x, q.lo, q.range, side.bits);
  } else if (side.bits == 8) {
    code = progressive_code<8>(x, q.lo, q.inverse, &q.range, side.codes.cells);
  } else if (side.bits == 4) {
    code = progressive_code<4>(x, q.lo, q.inverse, &q.range, side.codes.cells);
  } else {
    code = progressive_code<2>(x, q.lo, q.inverse, &q.range, side.codes.cells);
  }
  return code & ((1u << side.bits) - 1);
}

KVASIR_HOST_DEVICE inline int plane_words(const CodedSide& side, int p) {
  return side.layout.y_size * side.layout.planes[p].vectors_per_row();
}

// Word i of plane p: one y and as many x as fit. Quantisers are those of group_parameters' groups.
KVASIR_HOST_DEVICE inline uint32_t plane_word(const CodedSide& side, const uint16_t* rows, const Quantiser* quantisers,
                                              const double* inverse16, int p, int i) {
  const uniform::Layout& layout = side.layout;
  const CodePlane& plane = layout.planes[p];
  const int vector = i / CodePlane::kLanes, vectors = plane.vectors_per_row();
  const int y = vector / vectors * CodePlane::kLanes + i % CodePlane::kLanes;
  const int x0 = vector % vectors * plane.x_per_vector();
  uint32_t word = 0;
  for (int j = 0; j < plane.x_per_vector() && x0 + j < layout.x_size; ++j) {
    const int x = x0 + j;
    const int token = side.keys ? y : x, channel = side.keys ? x : y;
    const int entry = side.per_token ? token : channel;
    const int group = (side.per_token ? channel : token) / layout.group * layout.entries + entry;
    const float value = row_element(rows, static_cast<int64_t>(token) * side.head_dim + channel);
    const uint32_t code = canonical_code(side, value, quantisers[group], inverse16 + group);
    word |= (code >> plane.shift & ((1u << plane.bits) - 1)) << (8 * (j % 4) + j / 4 * plane.bits);
  }
  return word;
}

}  // namespace kvasir::cuda
