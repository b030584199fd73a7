#include <cstring>

#include "codecs/uniform/format.h"
#include "codecs/uniform/formula.h"
#include "kernels/scalar/scalar.h"
#include "kernels/scalar/uniform_page.h"

namespace kvasir::scalar {
namespace {

using uniform::Layout;

void encode(const PageFormat& format, const float* rows, uint8_t* page) {
  const uniform::Codes codes = uniform::codes_of(format.bits, format.grid);
  const auto code_of = [&](float x, float lo, float range) {
    return uniform::encode_element(x, lo, uniform::inverse_step(range, codes), codes);
  };
  encode_page(format, rows, code_of, page);
}

void decode_token(const PageFormat& format, const Layout& layout, const uint8_t* page, int token, float* row) {
  const uniform::Codes codes = uniform::codes_of(format.bits, format.grid);
  for (int c = 0; c < format.head_dim; ++c) {
    const bool by_channel = format.axis == Axis::kChannel;
    const int entry = by_channel ? c : token;
    const int position = by_channel ? token : c;
    const int g = position / layout.group;
    uint16_t lo, range;
    std::memcpy(&lo, page + layout.lo_offset(g) + 2 * entry, 2);
    std::memcpy(&range, page + layout.range_offset(g) + 2 * entry, 2);
    const Element e = element_at(format, layout, entry, position);
    const float step = uniform::step_of(half_to_float(range), codes);
    const float base = uniform::base_of(half_to_float(lo), step, codes);
    row[c] = uniform::decode_element(layout.get(page, e.x, e.y), base, step);
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
