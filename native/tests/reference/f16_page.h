// Codec f16 of docs/format.md: the float16 bits of each token row.
#pragma once

#include "reference/half.h"
#include "reference/page.h"

namespace reference {

inline ReferenceCodec f16_reference() {
  ReferenceCodec codec;
  codec.variants = [](Side, int) { return std::vector<Options>{{}}; };
  codec.shape = [](Side side, int bits, int head_dim, const Options&) { return PageShape{side, head_dim, bits, 0, 0}; };
  codec.decode = [](const PageShape& shape, const uint8_t* page) {
    PageContent content;
    const size_t elements = static_cast<size_t>(kTokens) * shape.head_dim;
    for (size_t i = 0; i < elements; ++i) {
      const auto bits = static_cast<uint16_t>(page[2 * i] | page[2 * i + 1] << 8);
      content.rows.push_back(static_cast<float>(half_value(bits)));
    }
    content.lo = content.rows;
    content.step.assign(elements, 0.0f);
    return content;
  };
  codec.encode = [](const PageShape& shape, const float* rows) {
    std::vector<uint8_t> page;
    for (int i = 0; i < kTokens * shape.head_dim; ++i) {
      const uint16_t bits = half_nearest(rows[i]);
      page.push_back(static_cast<uint8_t>(bits & 255));
      page.push_back(static_cast<uint8_t>(bits >> 8));
    }
    return page;
  };
  return codec;
}

}  // namespace reference
