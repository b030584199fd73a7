#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "kernels/scalar/scalar.h"
#include "kernels/tiered_inl.h"

namespace kvasir::scalar {
namespace {

using tiered::Layout;

size_t lay_out(const PageFormat& format, const float* rows, const float* importance, uint8_t* head) {
  const int d = format.head_dim;
  ChannelExtremes extremes;
  for (int t = 0; t < kPageTokens; ++t) {
    float* low = extremes.low + t / format.group * d;
    float* high = extremes.high + t / format.group * d;
    const bool first = t % format.group == 0;
    for (int c = 0; c < d; ++c) {
      const float x = rows[static_cast<size_t>(t) * d + c];
      low[c] = first ? x : std::min(low[c], x);
      high[c] = first ? x : std::max(high[c], x);
    }
  }
  return write_head(format, extremes, importance, head);
}

// The plane of a column, its offset in the part, and the column's number in it.
struct Place {
  tiered::Plane plane;
  size_t offset;
  int column;
};

Place place_of(const Layout& layout, int column) {
  if (column < layout.wide.columns) return {layout.wide, layout.wide_offset, column};
  return {layout.narrow, layout.narrow_offset, column - layout.wide.columns};
}

void encode(const PageFormat& format, const float* rows, uint8_t* page) {
  const Layout layout = tiered::layout_of(format, page);
  write_values(layout, rows, page);
  std::memset(page + layout.wide_offset, 0, layout.bytes - layout.wide_offset);
  for (int column = 0; column < layout.columns; ++column) {
    const int at = layout.place_of(column);
    if (at < 0) continue;
    const int channel = tiered::channels_of(page)[at];
    const uniform::Codes codes = codes_of_column(layout, column);
    const Place place = place_of(layout, column);
    for (int t = 0; t < kPageTokens; ++t) {
      const uniform::Parameters stored = tiered::load_parameters(layout, page, t / layout.group, column);
      const float x = rows[static_cast<size_t>(t) * format.head_dim + channel];
      const int code = uniform::encode_element(x, half_to_float(stored.lo),
                                               uniform::inverse_step(half_to_float(stored.range), codes), codes);
      uint8_t& byte = page[place.offset + place.plane.byte_of(place.column, t)];
      byte = static_cast<uint8_t>(byte | code << place.plane.bit_of(t));
    }
  }
}

void decode(const PageFormat& format, const uint8_t* page, float* rows) {
  const Layout layout = tiered::layout_of(format, page);
  const uint8_t* channels = tiered::channels_of(page);
  for (int i = 0; i < layout.n16; ++i) {
    const uint16_t* values = reinterpret_cast<const uint16_t*>(page + layout.value_offset(i));
    for (int t = 0; t < kPageTokens; ++t) rows[t * format.head_dim + channels[i]] = half_to_float(values[t]);
  }
  for (int column = 0; column < layout.columns; ++column) {
    const int at = layout.place_of(column);
    if (at < 0) continue;
    const uniform::Codes codes = codes_of_column(layout, column);
    const Place place = place_of(layout, column);
    for (int g = 0; g < layout.groups; ++g) {
      const uniform::Parameters stored = tiered::load_parameters(layout, page, g, column);
      const float step = uniform::step_of(half_to_float(stored.range), codes);
      const float base = uniform::base_of(half_to_float(stored.lo), step, codes);
      for (int t = g * layout.group; t < (g + 1) * layout.group; ++t) {
        const uint8_t byte = page[place.offset + place.plane.byte_of(place.column, t)];
        const int code = byte >> place.plane.bit_of(t) & codes.last;
        rows[t * format.head_dim + channels[at]] = uniform::decode_element(code, base, step);
      }
    }
  }
}

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  alignas(64) float keys[kPageTokens * kMaxHeadDim];
  decode(format, page, keys);
  for (int r = 0; r < queries.count; ++r) {
    const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
    for (int t = 0; t < kPageTokens; ++t) {
      float sum = 0.0f;
      for (int c = 0; c < format.head_dim; ++c) sum += query[c] * keys[t * format.head_dim + c];
      scores[r * kPageTokens + t] = sum;
    }
  }
}

constexpr CodecKernels make_kernels() {
  CodecKernels kernels = {encode, decode, key_scores, nullptr};
  kernels.lay_out = lay_out;
  return kernels;
}

}  // namespace

constexpr CodecKernels tiered_kernels = make_kernels();

}  // namespace kvasir::scalar
