#include "kernels/cuda/tiered/layout.h"

#include <algorithm>
#include <cstring>

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

// Whether a column has its own parameters.
bool has_parameters(const TieredBlock& device, int chunk, const TieredColumn& column) {
  return column.kind != kPadding && !(device.is_wide(chunk) && column.kind == kHighBits);
}

// verb(chunk, x, column) for all columns but padding.
template <class Verb>
void for_columns(const TieredBlock& device, const Verb& verb) {
  for (int chunk = 0; chunk < device.key_chunks(); ++chunk) {
    for (int x = 0; x < kColumnsPerChunk; ++x) {
      const TieredColumn column = device.column(chunk, x);
      if (column.kind != kPadding) verb(chunk, x, column);
    }
  }
}

}  // namespace

bool tiered_supported(const PageFormat& keys, const PageFormat& values) {
  if (!head_dim_supported(keys.head_dim) || keys.head_dim != values.head_dim) return false;
  return (values.bits == 2 || values.bits == 4) && values.axis == Axis::kToken && values.group % 32 == 0;
}

TieredFormat tiered_format(const PageFormat& keys, const PageFormat& values) {
  return {keys.head_dim, values.bits, keys.group == kPageTokens ? kPageTokens : 32, values.group};
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
  for_columns(device, [&](int chunk, int x, const TieredColumn& column) {
    const uint8_t channel = channels[column.place];
    if (!device.is_wide(chunk)) {
      store16(block + device.column_byte(chunk, x), static_cast<uint16_t>(channel + 256 * column.kind));
    } else if (column.kind == kLowBits) {
      block[device.column_byte(chunk, x)] = channel;
    }
    const int parameter = parameter_of(layout, column.place);
    for (int t = 0; has_parameters(device, chunk, column) && t < kPageTokens; t += 32) {
      const int group = t / layout.group;
      const uint16_t range = load16(key_part + layout.range_offset(group) + 2 * parameter);
      uint8_t* const to = block + device.parameter_byte(chunk, x, t / device.format.key_group);
      store16(to, range);
      if (column.kind != kHighBits) store16(to + 2, load16(key_part + layout.lo_offset(group) + 2 * parameter));
      block[channel] = std::max(block[channel], half_range_bound(range));
    }
    for (int t = 0; t < kPageTokens; ++t) {
      const Place from = code_place(layout, column, t), to = device.code_place(chunk, x, t);
      block[to.byte] = static_cast<uint8_t>(block[to.byte] | (key_part[from.byte] >> from.bit & 3) << to.bit);
    }
  });
  const uniform::Layout uniform_layout = uniform::layout_of(values);
  const CodePlane& plane = uniform_layout.planes[0];
  const PartLayout part = device.format.value_chunk();
  for (int g = 0; g < device.format.value_groups(); ++g) {
    for (int t = 0; t < kPageTokens; ++t) {
      uint8_t* const to = block + device.value_parameters_offset(g) + part.parameter_byte(t);
      store16(to, load16(value_part + uniform_layout.range_offset(g) + 2 * t));
      store16(to + 2, load16(value_part + uniform_layout.lo_offset(g) + 2 * t));
    }
  }
  for (int v = 0; v < device.format.value_chunks(); ++v) {
    for (int t = 0; t < kPageTokens; ++t) {
      for (int c = 0; c < 32; ++c) {
        const Place to = part.code_place(0, t, c);
        uint8_t& byte = block[device.value_codes_offset(v) + to.byte];
        byte = static_cast<uint8_t>(byte | plane.get(value_part + uniform_layout.plane_offset[0], t, 32 * v + c)
                                               << to.bit);
      }
    }
  }
  for (int i = 0; i < layout.n16; ++i) {
    block[device.channels_offset() + i] = channels[i];
    for (int t = 0; t < kPageTokens; ++t) {
      store16(block + device.elements_offset() + 256 * i + t % 8 * 32 + t / 8 * 2,
              load16(key_part + layout.value_offset(i) + 2 * t));
    }
  }
}

size_t unpack_tiered(const PageFormat& keys, const PageFormat& values, const TieredBlock& device, const uint8_t* block,
                     uint8_t* key_part, uint8_t* value_part) {
  const tiered::Layout layout = tiered::layout_of(keys, device.n16, device.n4);
  std::memset(key_part, 0, layout.bytes);
  store16(key_part, static_cast<uint16_t>(device.n16));
  store16(key_part + 2, static_cast<uint16_t>(device.n4));
  uint8_t* const channels = key_part + tiered::kCountBytes;
  for_columns(device, [&](int chunk, int x, const TieredColumn& column) {
    if (column.kind != kHighBits) channels[column.place] = block[device.column_byte(chunk, x)];
    const int parameter = parameter_of(layout, column.place);
    for (int g = 0; column.kind != kHighBits && g < layout.groups; ++g) {
      const uint8_t* const from = block + device.parameter_byte(chunk, x, g * layout.group / device.format.key_group);
      store16(key_part + layout.range_offset(g) + 2 * parameter, load16(from));
      store16(key_part + layout.lo_offset(g) + 2 * parameter, load16(from + 2));
    }
    for (int t = 0; t < kPageTokens; ++t) {
      const Place to = code_place(layout, column, t), from = device.code_place(chunk, x, t);
      key_part[to.byte] = static_cast<uint8_t>(key_part[to.byte] | (block[from.byte] >> from.bit & 3) << to.bit);
    }
  });
  for (int i = 0; i < device.n16; ++i) {
    channels[i] = block[device.channels_offset() + i];
    for (int t = 0; t < kPageTokens; ++t) {
      store16(key_part + layout.value_offset(i) + 2 * t,
              load16(block + device.elements_offset() + 256 * i + t % 8 * 32 + t / 8 * 2));
    }
  }
  const uniform::Layout uniform_layout = uniform::layout_of(values);
  const CodePlane& plane = uniform_layout.planes[0];
  const PartLayout part = device.format.value_chunk();
  std::memset(value_part, 0, values.page_bytes);
  for (int g = 0; g < device.format.value_groups(); ++g) {
    for (int t = 0; t < kPageTokens; ++t) {
      const uint8_t* const from = block + device.value_parameters_offset(g) + part.parameter_byte(t);
      store16(value_part + uniform_layout.range_offset(g) + 2 * t, load16(from));
      store16(value_part + uniform_layout.lo_offset(g) + 2 * t, load16(from + 2));
    }
  }
  for (int v = 0; v < device.format.value_chunks(); ++v) {
    for (int t = 0; t < kPageTokens; ++t) {
      for (int c = 0; c < 32; ++c) {
        const Place from = part.code_place(0, t, c);
        const int code = block[device.value_codes_offset(v) + from.byte] >> from.bit & ((1 << values.bits) - 1);
        plane.put(value_part + uniform_layout.plane_offset[0], t, 32 * v + c, code);
      }
    }
  }
  return layout.bytes;
}

}  // namespace kvasir::cuda
