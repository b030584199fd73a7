// Codec progressive of docs/format.md: pages of codec uniform, whose codes are exact quotients, rounded down (cells) or
// to nearest, ties to even. Computed here in whole numbers, and at each width on its own: nothing is ever shrunk, but
// for levels from end to end with the shifts that are there to be compared with, which no other arithmetic gives.
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

// 1 or 2: codes are the upper bits of those of 16 bits; with 2, parameters are moved at every halving.
inline int cut(const PageShape& s) {
  const auto found = s.options.find("shift");
  return found == s.options.end() || s.cells ? 0 : static_cast<int>(found->second);
}

// lo and range of a group after halvings from 16 bits to `bits`: a code stands for the mean of those that it replaces.
inline void move_parameters(const PageShape& s, uint8_t* lo, uint8_t* range) {
  for (int width = 8; width >= s.bits; width /= 2) {
    const double codes = std::ldexp(1.0, width);
    const double low = half_value(uniform::load16(lo)), wide = half_value(uniform::load16(range));
    const double step = wide / (codes * codes - 1);
    uniform::store16(lo, half_nearest(static_cast<float>(low + step * (codes - 1) / 2)));
    uniform::store16(range, half_nearest(static_cast<float>(step * codes * (codes - 1))));
  }
}

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
      const int64_t levels = (1 << (cut(s) > 0 ? 16 : s.bits)) - 1;
      const __int128 scaled = static_cast<__int128>(distance) * (s.cells ? levels + 1 : levels);
      const int64_t code = s.cells ? static_cast<int64_t>(scaled / range) : rounded_quotient(scaled, range);
      const int64_t stored = std::min(code, levels) >> (cut(s) > 0 ? 16 - s.bits : 0);
      uniform::store_code(s, page.data(), t, c, static_cast<int>(stored));
    }
  }
  for (int g = 0; cut(s) == 2 && g < uniform::groups(s); ++g) {
    for (int e = 0; e < uniform::entries(s); ++e) {
      const int at = g * s.group;
      uint8_t* lo = page.data() + (s.axis == 0 ? uniform::lo_offset(s, at, e) : uniform::lo_offset(s, e, at));
      move_parameters(s, lo, lo + 2 * uniform::entries(s));
    }
  }
  return page;
}

inline std::vector<Options> variants(Side side, int head_dim) {
  std::vector<Options> list = uniform::variants(side, head_dim);
  list.push_back({{"grid", 0.0}, {"shift", 1.0}});
  list.push_back({{"grid", 0.0}, {"shift", 2.0}});
  return list;
}

inline PageShape shape(Side side, int bits, int head_dim, const Options& options) {
  Options layout = options;
  layout.emplace("grid", 1.0);
  PageShape shape = uniform::shape(side, bits, head_dim, layout);
  if (options.count("shift") > 0) shape.options["shift"] = options.at("shift");
  return shape;
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
