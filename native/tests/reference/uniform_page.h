// Codec uniform of docs/format.md: groups with float16 parameters, codes in planes of 64-byte vectors.
#pragma once

#include <algorithm>
#include <cmath>

#include "reference/half.h"
#include "reference/page.h"

namespace reference {
namespace uniform {

// Widths of a code's planes, lowest bits first.
struct Planes {
  int count;
  int widths[2];
  const int* begin() const { return widths; }
  const int* end() const { return widths + count; }
};

inline Planes planes(int bits) {
  if (bits == 3) return {2, {2, 1}};
  if (bits == 16) return {2, {8, 8}};
  return {1, {bits, 0}};
}

inline int entries(const PageShape& s) { return s.axis == 0 ? s.head_dim : kTokens; }

inline int groups(const PageShape& s) {
  const int along = s.axis == 0 ? kTokens : s.head_dim;
  return (along + s.group - 1) / s.group;
}

// Where the group of an element stores lo; range follows `entries` later.
inline size_t lo_offset(const PageShape& s, int token, int channel) {
  const int entry = s.axis == 0 ? channel : token;
  const int group = (s.axis == 0 ? token : channel) / s.group;
  return 2 * (static_cast<size_t>(group) * 2 * entries(s) + entry);
}

inline size_t codes_offset(const PageShape& s) {
  const size_t parameters = static_cast<size_t>(4) * entries(s) * groups(s);
  return (parameters + 63) / 64 * 64;
}

inline size_t plane_bytes(const PageShape& s, int width) {
  const int contracted = s.side == Side::kKeys ? s.head_dim : kTokens;
  const int other = s.side == Side::kKeys ? kTokens : s.head_dim;
  const int per_vector = 4 * (8 / width);
  return static_cast<size_t>(64) * (other / 16) * ((contracted + per_vector - 1) / per_vector);
}

inline size_t page_bytes(const PageShape& s) {
  size_t bytes = codes_offset(s);
  for (const int width : planes(s.bits)) bytes += plane_bytes(s, width);
  return bytes;
}

// Byte and lowest bit of one code in a plane that starts at `plane`.
struct Place {
  size_t byte;
  int bit;
};

inline Place place(const PageShape& s, size_t plane, int width, int token, int channel) {
  const int x = s.side == Side::kKeys ? channel : token;
  const int y = s.side == Side::kKeys ? token : channel;
  const int contracted = s.side == Side::kKeys ? s.head_dim : kTokens;
  const int per_vector = 4 * (8 / width);
  const int vectors = (contracted + per_vector - 1) / per_vector;
  const size_t vector = static_cast<size_t>(y / 16) * vectors + x / per_vector;
  const int in_vector = x % per_vector;
  return {plane + 64 * vector + 4 * (y % 16) + in_vector % 4, in_vector / 4 * width};
}

inline uint16_t load16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

inline void store16(uint8_t* p, uint16_t value) {
  p[0] = static_cast<uint8_t>(value & 255);
  p[1] = static_cast<uint8_t>(value >> 8);
}

inline int load_code(const PageShape& s, const uint8_t* page, int token, int channel) {
  int code = 0, shift = 0;
  size_t plane = codes_offset(s);
  for (const int width : planes(s.bits)) {
    const Place at = place(s, plane, width, token, channel);
    code |= ((page[at.byte] >> at.bit) & ((1 << width) - 1)) << shift;
    shift += width;
    plane += plane_bytes(s, width);
  }
  return code;
}

inline void store_code(const PageShape& s, uint8_t* page, int token, int channel, int code) {
  size_t plane = codes_offset(s);
  for (const int width : planes(s.bits)) {
    const Place at = place(s, plane, width, token, channel);
    page[at.byte] = static_cast<uint8_t>(page[at.byte] | (code & ((1 << width) - 1)) << at.bit);
    code >>= width;
    plane += plane_bytes(s, width);
  }
}

inline PageContent decode(const PageShape& s, const uint8_t* page) {
  PageContent content;
  content.levels = (1 << s.bits) - 1;
  const float steps = static_cast<float>(s.cells ? content.levels + 1 : content.levels);
  for (int t = 0; t < kTokens; ++t) {
    for (int c = 0; c < s.head_dim; ++c) {
      const uint8_t* parameters = page + lo_offset(s, t, c);
      const float lo = static_cast<float>(half_value(load16(parameters)));
      const float range = static_cast<float>(half_value(load16(parameters + 2 * entries(s))));
      const float step = range / steps;
      const float half_cell = s.cells ? step / 2.0f : 0.0f;
      const float first = lo + half_cell;
      const float scaled = static_cast<float>(load_code(s, page, t, c)) * step;
      content.lo.push_back(first);
      content.step.push_back(step);
      content.rows.push_back(first + scaled);
    }
  }
  return content;
}

inline std::vector<uint8_t> encode(const PageShape& s, const float* rows) {
  std::vector<uint8_t> page(page_bytes(s), 0);
  const float levels = static_cast<float>((1 << s.bits) - 1);
  const int token_step = s.axis == 0 ? s.group : 1;
  const int channel_step = s.axis == 0 ? 1 : s.group;
  for (int t0 = 0; t0 < kTokens; t0 += token_step) {
    for (int c0 = 0; c0 < s.head_dim; c0 += channel_step) {
      const int t1 = std::min(t0 + token_step, kTokens), c1 = std::min(c0 + channel_step, s.head_dim);
      float lo = rows[t0 * s.head_dim + c0], hi = lo;
      for (int t = t0; t < t1; ++t) {
        for (int c = c0; c < c1; ++c) {
          lo = std::min(lo, rows[t * s.head_dim + c]);
          hi = std::max(hi, rows[t * s.head_dim + c]);
        }
      }
      lo += 0.0f;                              // a minimum of -0 is stored as +0
      const uint16_t lo_bits = half_down(lo);  // lo itself, where elements are float16 values
      lo = static_cast<float>(half_value(lo_bits));
      // For float16 values both are multiples of 2^-24 below 2^15: the difference is exact in double, and only there.
      const uint16_t range_bits = half_up(static_cast<double>(hi) - static_cast<double>(lo));
      const float range = static_cast<float>(half_value(range_bits));
      uint8_t* parameters = page.data() + lo_offset(s, t0, c0);
      store16(parameters, lo_bits);
      store16(parameters + 2 * entries(s), range_bits);
      const float scale = range > 0.0f ? (s.cells ? levels + 1.0f : levels) / range : 0.0f;
      for (int t = t0; t < t1; ++t) {
        for (int c = c0; c < c1; ++c) {
          const float distance = rows[t * s.head_dim + c] - lo;
          const float scaled = distance * scale;
          const float whole = s.cells ? std::floor(scaled) : std::nearbyintf(scaled);
          store_code(s, page.data(), t, c, static_cast<int>(std::min(levels, whole)));
        }
      }
    }
  }
  return page;
}

// Whether an option setting asks for cells; they are the default at 1 and 2 bits.
inline bool wants_cells(int bits, const Options& options) {
  const auto grid = options.find("grid");
  return grid == options.end() ? bits <= 2 : grid->second == 1.0;
}

// Both axes; groups of 32, 64, 128 tokens, or of 32, 64, 128 or all channels; both grids; and the defaults.
inline std::vector<Options> variants(Side, int head_dim) {
  std::vector<Options> list = {{}, {{"grid", 0.0}}, {{"grid", 1.0}}};
  for (const double group : {32.0, 64.0, 128.0}) {
    for (const double grid : {0.0, 1.0}) list.push_back({{"axis", 0.0}, {"group", group}, {"grid", grid}});
  }
  for (const double group : {32.0, 64.0, 128.0}) {
    if (group < head_dim) list.push_back({{"axis", 1.0}, {"group", group}, {"grid", group == 64.0 ? 0.0 : 1.0}});
  }
  list.push_back({{"axis", 1.0}, {"group", static_cast<double>(head_dim)}});
  return list;
}

inline PageShape shape(Side side, int bits, int head_dim, const Options& options) {
  PageShape s{side, head_dim, bits, side == Side::kKeys ? 0 : 1, 0};
  const auto axis = options.find("axis");
  if (axis != options.end()) s.axis = static_cast<int>(axis->second);
  s.group = s.axis == 0 ? kTokens : std::min(head_dim, 128);
  const auto group = options.find("group");
  if (group != options.end()) s.group = static_cast<int>(group->second);
  s.cells = wants_cells(bits, options);
  return s;
}

}  // namespace uniform

inline ReferenceCodec uniform_reference() {
  return {{"axis", "group", "grid"}, uniform::variants, uniform::shape, uniform::decode, uniform::encode};
}

}  // namespace reference
