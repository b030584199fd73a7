#include "kernels/cuda/tiered/layout.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "codecs/tiered/format.h"
#include "codecs/uniform/format.h"

namespace kvasir::cuda {
namespace {

uint16_t load16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, 2);
  return value;
}
void store16(uint8_t* to, uint16_t value) { std::memcpy(to, &value, 2); }

// The canonical column of a channel that has one.
int parameter_of(const tiered::Layout& layout, int place) {
  const int column = place - layout.n16;
  return column < layout.n4 ? column : layout.wide.columns + column - layout.n4;
}

// Byte and bit of a canonical code: of two bits, those of a 4-bit code that a column of the device has.
Place code_place(const tiered::Layout& layout, const TieredColumn& column, int token) {
  const bool wide = column.kind != kTwoBits;
  const tiered::Plane plane = wide ? layout.wide : layout.narrow;
  const int in_plane = column.place - layout.n16 - (wide ? 0 : layout.n4);
  const size_t byte = (wide ? layout.wide_offset : layout.narrow_offset) + plane.byte_of(in_plane, token);
  return {static_cast<int>(byte), plane.bit_of(token) + (column.kind == kHighBits ? 2 : 0)};
}

// verb(pair, which, column) for all columns that have a channel.
template <class Verb>
void for_columns(const TieredBlock& device, const Verb& verb) {
  for (int pair = 0; pair < device.pairs(); ++pair) {
    for (int which = 0; which < 2; ++which) {
      const TieredColumn column = device.column(pair, which);
      if (column.kind != kPadding) verb(pair, which, column);
    }
  }
}

// What both layouts have of keys: number(canonical byte, device byte) for 16-bit numbers, code(canonical place, device
// place) for two bits. Numbers that one of them has more often come more often. channels: of docs/format.md.
template <class Number, class Code>
void for_keys(const tiered::Layout& layout, const uint8_t* channels, const TieredBlock& device, const Number& number,
              const Code& code) {
  for_columns(device, [&](int pair, int which, const TieredColumn& column) {
    const int parameter = parameter_of(layout, column.place);
    for (int t = 0; t < kPageTokens; t += 32) {
      const int group = t / layout.group, there = t / device.format.key_group;
      number(layout.range_offset(group) + 2 * parameter, device.range_byte(pair, which, there));
      number(layout.lo_offset(group) + 2 * parameter, device.lo_byte(channels[column.place], there));
    }
    for (int t = 0; t < kPageTokens; ++t) code(code_place(layout, column, t), device.code_place(pair, which, t));
  });
  for (int i = 0; i < layout.n16; ++i) {
    for (int t = 0; t < kPageTokens; ++t) number(layout.value_offset(i) + 2 * t, device.wide_element_byte(i, t));
  }
}

// verb(span, group of the span, canonical group).
template <class Verb>
void for_groups(const TieredFormat& format, const Verb& verb) {
  for (int span = 0; span < format.value_spans(); ++span) {
    const int first = span * kValueSpan / format.value_group;
    for (int group = 0; group < format.span_groups(span); ++group) verb(span, group, first + group);
  }
}

// The same for values: code(token, channel, device place).
template <class Number, class Code>
void for_values(const uniform::Layout& layout, const TieredBlock& device, const Number& number, const Code& code) {
  for (int t = 0; t < kPageTokens; ++t) {
    for_groups(device.format, [&](int span, int group, int canonical) {
      number(layout.range_offset(canonical) + 2 * t, device.value_range_byte(span, group, t));
      number(layout.lo_offset(canonical) + 2 * t, device.value_lo_byte(span, group, t));
    });
    for (int c = 0; c < device.format.head_dim; ++c) code(t, c, device.value_code_place(c, t));
  }
}

void put_bits(uint8_t* bytes, const Place& place, int bits) {
  bytes[place.byte] = static_cast<uint8_t>(bytes[place.byte] | bits << place.bit);
}

}  // namespace

bool tiered_supported(const PageFormat& keys, const PageFormat& values) {
  if (!head_dim_supported(keys.head_dim) || keys.head_dim != values.head_dim) return false;
  if (tiered::parameter_bytes(keys) != 2) return false;
  return (values.bits == 2 || values.bits == 4) && values.axis == Axis::kToken && values.group % 32 == 0;
}

TieredFormat tiered_format(const PageFormat& keys, const PageFormat& values) {
  return {keys.head_dim, values.bits, keys.group == kPageTokens ? kPageTokens : 32,
          values.group,  keys.grid,   values.grid};
}

TieredBlock tiered_block(const PageFormat& keys, const PageFormat& values, const uint8_t* key_part) {
  const tiered::Layout layout = tiered::layout_of(keys, key_part);
  return tiered_block(tiered_format(keys, values), layout.n16, layout.n4);
}

void pack_tiered(const PageFormat& keys, const PageFormat& values, const uint8_t* key_part, const uint8_t* value_part,
                 uint8_t* block) {
  const tiered::Layout layout = tiered::layout_of(keys, key_part);
  const TieredBlock device = tiered_block(keys, values, key_part);
  std::memset(block, 0, static_cast<size_t>(device.bytes()));
  const uint8_t* const channels = tiered::channels_of(key_part);
  for_columns(device, [&](int pair, int which, const TieredColumn& column) {
    const uint8_t channel = channels[column.place];
    store16(block + device.column_byte(pair, which),
            static_cast<uint16_t>(stored_row(keys.head_dim, column.kind, channel)));
    for (int g = 0; g < layout.groups; ++g) {
      const uint16_t range = load16(key_part + layout.range_offset(g) + 2 * parameter_of(layout, column.place));
      block[channel] = std::max(block[channel], half_range_bound(range));
    }
  });
  for_keys(
      layout, channels, device, [&](size_t from, int to) { store16(block + to, load16(key_part + from)); },
      [&](const Place& from, const Place& to) { put_bits(block, to, key_part[from.byte] >> from.bit & 3); });
  for (int i = 0; i < layout.n16; ++i) {
    store16(block + device.wide_row_byte(i), static_cast<uint16_t>(query_halves(channels[i])));
  }
  const uniform::Layout uniform_layout = uniform::layout_of(values);
  for_values(
      uniform_layout, device, [&](size_t from, int to) { store16(block + to, load16(value_part + from)); },
      [&](int t, int c, const Place& to) {
        put_bits(block, to, uniform_layout.planes[0].get(value_part + uniform_layout.plane_offset[0], t, c));
      });
  uint32_t sign = 0;
  std::vector<uint16_t> greatest;
  for (int g = 0; g < uniform_layout.groups; ++g) {
    uint16_t most = 0, least = 0xffff;
    for (int t = 0; t < kPageTokens; ++t) {
      const uint16_t range = load16(value_part + uniform_layout.range_offset(g) + 2 * t);
      most = std::max(most, range);
      least = std::min(least, range);
    }
    if (uneven_ranges(most, least)) sign = 0x80000000u;
    greatest.push_back(most);
  }
  for_groups(device.format, [&](int span, int group, int canonical) {
    const uint32_t bias = sign | rounding_bias(greatest[static_cast<size_t>(canonical)]);
    std::memcpy(block + device.value_bias_byte(span, group), &bias, 4);
  });
}

size_t unpack_tiered(const PageFormat& keys, const PageFormat& values, const TieredBlock& device, const uint8_t* block,
                     uint8_t* key_part, uint8_t* value_part) {
  const tiered::Layout layout = tiered::layout_of(keys, device.n16, device.n4);
  std::memset(key_part, 0, layout.bytes);
  store16(key_part, static_cast<uint16_t>(device.n16));
  store16(key_part + 2, static_cast<uint16_t>(device.n4));
  uint8_t* const channels = key_part + tiered::kCountBytes;
  for (int i = 0; i < device.n16; ++i) {
    channels[i] = static_cast<uint8_t>(channel_of_halves(load16(block + device.wide_row_byte(i))));
  }
  for_columns(device, [&](int pair, int which, const TieredColumn& column) {
    const uint16_t stored = load16(block + device.column_byte(pair, which));
    channels[column.place] = static_cast<uint8_t>(channel_of_row(keys.head_dim, stored));
  });
  for_keys(
      layout, channels, device, [&](size_t to, int from) { store16(key_part + to, load16(block + from)); },
      [&](const Place& to, const Place& from) { put_bits(key_part, to, block[from.byte] >> from.bit & 3); });
  const uniform::Layout uniform_layout = uniform::layout_of(values);
  std::memset(value_part, 0, values.page_bytes);
  for_values(
      uniform_layout, device, [&](size_t to, int from) { store16(value_part + to, load16(block + from)); },
      [&](int t, int c, const Place& from) {
        const int code = block[from.byte] >> from.bit & ((1 << values.bits) - 1);
        uniform_layout.planes[0].put(value_part + uniform_layout.plane_offset[0], t, c, code);
      });
  return layout.bytes;
}

}  // namespace kvasir::cuda
