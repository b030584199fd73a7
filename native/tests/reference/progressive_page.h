// Codec progressive of docs/format.md: pages of codec uniform, whose codes are exact quotients, rounded down (cells) or
// to nearest, ties to even. Computed here in whole numbers, and at each width on its own: nothing is ever shrunk.
#pragma once

#include "reference/uniform_page.h"

namespace reference {
namespace progressive {

// numerator / denominator, rounded to nearest, ties to even.
inline int64_t rounded_quotient(__int128 numerator, __int128 denominator) {
  const __int128 twice = 2 * numerator;
  __int128 quotient = twice / (2 * denominator);
  const __int128 rest = twice - quotient * 2 * denominator;
  if (rest > denominator || (rest == denominator && quotient % 2 != 0)) ++quotient;
  return static_cast<int64_t>(quotient);
}

// float16 values are whole multiples of 2^-24.
inline int64_t in_units(double half) { return static_cast<int64_t>(std::ldexp(half, 24)); }

inline std::vector<uint8_t> encode(const PageShape& s, const float* rows) {
  std::vector<uint8_t> page = uniform::encode(s, rows);
  std::fill(page.begin() + static_cast<std::ptrdiff_t>(uniform::codes_offset(s)), page.end(), 0);
  for (int t = 0; t < kTokens; ++t) {
    for (int c = 0; c < s.head_dim; ++c) {
      const uint8_t* parameters = page.data() + uniform::lo_offset(s, t, c);
      const int64_t lo = in_units(half_value(uniform::load16(parameters)));
      const int64_t range = in_units(half_value(uniform::load16(parameters + 2 * uniform::entries(s))));
      if (range == 0) continue;
      const int64_t distance = in_units(rows[t * s.head_dim + c]) - lo;
      const int64_t levels = (1 << s.bits) - 1;
      const __int128 scaled = static_cast<__int128>(distance) * (s.cells ? levels + 1 : levels);
      const int64_t code = s.cells ? static_cast<int64_t>(scaled / range) : rounded_quotient(scaled, range);
      uniform::store_code(s, page.data(), t, c, static_cast<int>(std::min(code, levels)));
    }
  }
  return page;
}

inline std::vector<Options> variants(Side side, int head_dim) {
  std::vector<Options> list = uniform::variants(side, head_dim);
  list.push_back({{"grid", 0.0}, {"shift", 1.0}});  // says how pages shrink, and nothing of how they are written
  return list;
}

inline PageShape shape(Side side, int bits, int head_dim, const Options& options) {
  Options layout = options;
  layout.emplace("grid", 1.0);
  return uniform::shape(side, bits, head_dim, layout);
}

}  // namespace progressive

inline ReferenceCodec progressive_reference() {
  return {{"axis", "group", "grid", "floor", "shift"},
          progressive::variants,
          progressive::shape,
          uniform::decode,
          progressive::encode};
}

}  // namespace reference
