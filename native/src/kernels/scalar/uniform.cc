#include <algorithm>
#include <cstring>

#include "codecs/uniform/format.h"
#include "codecs/uniform/formula.h"
#include "kernels/scalar/scalar.h"

namespace kvasir::scalar {
namespace {

using uniform::Layout;

// Where element (entry, position along the group axis) stands in the row matrix and in the code matrix.
struct Element {
  size_t row_index;  // into [kPageTokens][head_dim]
  int x, y;
};

Element element_at(const PageFormat& format, const Layout& layout, int entry, int position) {
  const bool by_channel = format.axis == Axis::kChannel;
  const int token = by_channel ? position : entry;
  const int channel = by_channel ? entry : position;
  return {static_cast<size_t>(token) * format.head_dim + channel, layout.folded ? entry : position,
          layout.folded ? position : entry};
}

int positions(const PageFormat& format) { return format.axis == Axis::kChannel ? kPageTokens : format.head_dim; }

void encode(const PageFormat& format, const float* rows, uint8_t* page) {
  const Layout layout = uniform::layout_of(format);
  const int levels = uniform::levels_of(format.bits);
  std::memset(page, 0, layout.bytes);
  for (int g = 0; g < layout.groups; ++g) {
    const int begin = g * layout.group;
    const int end = std::min(begin + layout.group, positions(format));
    for (int entry = 0; entry < layout.entries; ++entry) {
      float lowest = rows[element_at(format, layout, entry, begin).row_index];
      float highest = lowest;
      for (int i = begin + 1; i < end; ++i) {
        const float x = rows[element_at(format, layout, entry, i).row_index];
        lowest = std::min(lowest, x);
        highest = std::max(highest, x);
      }
      const uniform::Parameters stored = uniform::parameters_of(lowest, highest);
      std::memcpy(page + layout.lo_offset(g) + 2 * entry, &stored.lo, 2);
      std::memcpy(page + layout.range_offset(g) + 2 * entry, &stored.range, 2);

      const float lo = half_to_float(stored.lo);
      const float inverse = uniform::inverse_step(half_to_float(stored.range), levels);
      for (int i = begin; i < end; ++i) {
        const Element e = element_at(format, layout, entry, i);
        layout.put(page, e.x, e.y, uniform::encode_element(rows[e.row_index], lo, inverse, levels));
      }
    }
  }
}

void decode_token(const PageFormat& format, const Layout& layout, const uint8_t* page, int token, float* row) {
  const int levels = uniform::levels_of(format.bits);
  for (int c = 0; c < format.head_dim; ++c) {
    const bool by_channel = format.axis == Axis::kChannel;
    const int entry = by_channel ? c : token;
    const int position = by_channel ? token : c;
    const int g = position / layout.group;
    uint16_t lo, range;
    std::memcpy(&lo, page + layout.lo_offset(g) + 2 * entry, 2);
    std::memcpy(&range, page + layout.range_offset(g) + 2 * entry, 2);
    const Element e = element_at(format, layout, entry, position);
    const float step = uniform::step_of(half_to_float(range), levels);
    row[c] = uniform::decode_element(layout.get(page, e.x, e.y), half_to_float(lo), step);
  }
}

void decode(const PageFormat& format, const uint8_t* page, float* rows) {
  const Layout layout = uniform::layout_of(format);
  for (int t = 0; t < kPageTokens; ++t) {
    decode_token(format, layout, page, t, rows + static_cast<size_t>(t) * format.head_dim);
  }
}

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  const Layout layout = uniform::layout_of(format);
  float key[kMaxHeadDim];
  for (int t = 0; t < kPageTokens; ++t) {
    decode_token(format, layout, page, t, key);
    for (int r = 0; r < queries.count; ++r) {
      const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
      float sum = 0.0f;
      for (int c = 0; c < format.head_dim; ++c) sum += query[c] * key[c];
      scores[r * kPageTokens + t] = sum;
    }
  }
}

void value_sum(const PageFormat& format, const uint8_t* page, const TileInput& weights, float* outputs) {
  const Layout layout = uniform::layout_of(format);
  float value[kMaxHeadDim];
  for (int t = 0; t < kPageTokens; ++t) {
    decode_token(format, layout, page, t, value);
    for (int r = 0; r < weights.count; ++r) {
      const float weight = weights.rows[static_cast<size_t>(r) * weights.stride + t];
      float* output = outputs + static_cast<size_t>(r) * format.head_dim;
      for (int c = 0; c < format.head_dim; ++c) output[c] += weight * value[c];
    }
  }
}

}  // namespace

const CodecKernels uniform_kernels = {encode, decode, key_scores, value_sum};

}  // namespace kvasir::scalar
