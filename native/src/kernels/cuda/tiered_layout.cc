#include "kernels/cuda/tiered_layout.h"

#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "codecs/tiered/format.h"
#include "codecs/uniform/format.h"

namespace kvasir::cuda {
namespace {

struct Column {
  int channel;    // where in channel[] of the canonical part
  int parameter;  // canonical column
  ColumnKind kind;
};

// Column x of the device: the low bits of the 4-bit tier, its high bits, then the 2-bit tier.
Column column_of(const tiered::Layout& layout, int x) {
  if (x < layout.n4) return {layout.n16 + x, x, kLowBits};
  x -= layout.n4;
  if (x < layout.n4) return {layout.n16 + x, x, kHighBits};
  x -= layout.n4;
  if (x < layout.n2) return {layout.n16 + layout.n4 + x, layout.wide.columns + x, kTwoBits};
  return {0, 0, kPadding};
}

int columns_of(const tiered::Layout& layout) { return 2 * layout.n4 + layout.n2; }

uint16_t load16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, 2);
  return value;
}
void store16(uint8_t* to, uint16_t value) { std::memcpy(to, &value, 2); }

// Byte and bit of a canonical code.
Place code_place(const tiered::Layout& layout, const Column& column, int token) {
  const bool wide = column.kind != kTwoBits;
  const tiered::Plane plane = wide ? layout.wide : layout.narrow;
  const int in_plane = wide ? column.parameter : column.parameter - layout.wide.columns;
  const size_t byte = (wide ? layout.wide_offset : layout.narrow_offset) + plane.byte_of(in_plane, token);
  return {static_cast<int>(byte), plane.bit_of(token) + (column.kind == kHighBits ? 2 : 0)};
}

}  // namespace

bool tiered_supported(const PageFormat& keys, const PageFormat& values) {
  if (!head_dim_supported(keys.head_dim) || keys.head_dim != values.head_dim) return false;
  return (values.bits == 2 || values.bits == 4) && values.axis == Axis::kToken && values.group % 32 == 0;
}

TieredBlock tiered_block(const PageFormat& keys, const PageFormat& values, const uint8_t* key_part) {
  const tiered::Layout layout = tiered::layout_of(keys, key_part);
  return {keys.head_dim, values.bits, (columns_of(layout) + kColumnsPerChunk - 1) / kColumnsPerChunk, layout.n16};
}

void pack_tiered(const PageFormat& keys, const PageFormat& values, const uint8_t* key_part, const uint8_t* value_part,
                 uint8_t* block) {
  const tiered::Layout layout = tiered::layout_of(keys, key_part);
  const TieredBlock device = tiered_block(keys, values, key_part);
  std::memset(block, 0, static_cast<size_t>(device.bytes()));
  float key_peaks[kTokenGroups] = {};
  const uint8_t* const channels = tiered::channels_of(key_part);
  for (int x = 0; x < device.key_chunks * kColumnsPerChunk; ++x) {
    uint8_t* const chunk = block + device.key_offset(x / kColumnsPerChunk);
    const int in_chunk = x % kColumnsPerChunk;
    const Column column = column_of(layout, x);
    store16(chunk + column_byte(in_chunk), static_cast<uint16_t>(channels[column.channel] + 256 * column.kind));
    if (column.kind == kPadding) continue;
    for (int g = 0; g < kTokenGroups; ++g) {
      const int group = 32 * g / layout.group;
      const uint16_t range = load16(key_part + layout.range_offset(group) + 2 * column.parameter);
      uint8_t* const to = chunk + column_parameter_byte(in_chunk, g);
      store16(to, range);
      if (column.kind != kHighBits) store16(to + 2, load16(key_part + layout.lo_offset(group) + 2 * column.parameter));
      key_peaks[g] = std::max(key_peaks[g], half_to_float(range));
    }
    for (int t = 0; t < kTokensPerPage; ++t) {
      const Place from = code_place(layout, column, t), to = column_code_place(in_chunk, t);
      chunk[to.byte] = static_cast<uint8_t>(chunk[to.byte] | (key_part[from.byte] >> from.bit & 3) << to.bit);
    }
  }
  for (int i = 0; i < device.key_chunks; ++i) std::memcpy(block + device.key_offset(i), key_peaks, sizeof key_peaks);
  const uniform::Layout uniform_layout = uniform::layout_of(values);
  const CodePlane& plane = uniform_layout.planes[0];
  for (int v = 0; v < device.value_chunks(); ++v) {
    const PartLayout part = device.value_chunk();
    uint8_t* const chunk = block + device.value_offset(v) + kPeakBytes;
    float peak = 0.0f;
    const int group = 32 * v / values.group;
    for (int t = 0; t < kTokensPerPage; ++t) {
      const uint16_t range = load16(value_part + uniform_layout.range_offset(group) + 2 * t);
      store16(chunk + part.parameter_byte(t), range);
      store16(chunk + part.parameter_byte(t) + 2, load16(value_part + uniform_layout.lo_offset(group) + 2 * t));
      peak = std::max(peak, half_to_float(range));
      for (int c = 0; c < 32; ++c) {
        const Place to = part.code_place(0, t, c);
        uint8_t& byte = chunk[part.parameter_bytes() + to.byte];
        byte = static_cast<uint8_t>(byte | plane.get(value_part + uniform_layout.plane_offset[0], t, 32 * v + c)
                                               << to.bit);
      }
    }
    std::memcpy(chunk - kPeakBytes, &peak, sizeof peak);
  }
  for (int i = 0; i < layout.n16; ++i) {
    block[device.channels_offset() + i] = channels[i];
    for (int t = 0; t < kTokensPerPage; ++t) {
      store16(block + device.elements_offset() + 256 * i + t % 8 * 32 + t / 8 * 2,
              load16(key_part + layout.value_offset(i) + 2 * t));
    }
  }
}

size_t unpack_tiered(const PageFormat& keys, const PageFormat& values, const TieredBlock& device, const uint8_t* block,
                     uint8_t* key_part, uint8_t* value_part) {
  // Tiers are ascending, and columns say what they are.
  int n4 = 0, n2 = 0;
  for (int x = 0; x < device.key_chunks * kColumnsPerChunk; ++x) {
    const int kind = load16(block + device.key_offset(x / kColumnsPerChunk) + column_byte(x % kColumnsPerChunk)) >> 8;
    n4 += kind == kLowBits;
    n2 += kind == kTwoBits;
  }
  const tiered::Layout layout = tiered::layout_of(keys, device.n16, n4);
  std::memset(key_part, 0, layout.bytes);
  store16(key_part, static_cast<uint16_t>(device.n16));
  store16(key_part + 2, static_cast<uint16_t>(n4));
  uint8_t* const channels = key_part + tiered::kCountBytes;
  for (int x = 0; x < 2 * n4 + n2; ++x) {
    const uint8_t* const chunk = block + device.key_offset(x / kColumnsPerChunk);
    const int in_chunk = x % kColumnsPerChunk;
    const Column column = column_of(layout, x);
    channels[column.channel] = chunk[column_byte(in_chunk)];
    for (int g = 0; g < kTokenGroups; ++g) {
      const int group = 32 * g / layout.group;
      const uint8_t* const from = chunk + column_parameter_byte(in_chunk, g);
      store16(key_part + layout.range_offset(group) + 2 * column.parameter, load16(from));
      if (column.kind != kHighBits)
        store16(key_part + layout.lo_offset(group) + 2 * column.parameter, load16(from + 2));
    }
    for (int t = 0; t < kTokensPerPage; ++t) {
      const Place to = code_place(layout, column, t), from = column_code_place(in_chunk, t);
      key_part[to.byte] = static_cast<uint8_t>(key_part[to.byte] | (chunk[from.byte] >> from.bit & 3) << to.bit);
    }
  }
  for (int i = 0; i < device.n16; ++i) {
    channels[i] = block[device.channels_offset() + i];
    for (int t = 0; t < kTokensPerPage; ++t) {
      store16(key_part + layout.value_offset(i) + 2 * t,
              load16(block + device.elements_offset() + 256 * i + t % 8 * 32 + t / 8 * 2));
    }
  }
  const uniform::Layout uniform_layout = uniform::layout_of(values);
  const CodePlane& plane = uniform_layout.planes[0];
  std::memset(value_part, 0, values.page_bytes);
  for (int v = 0; v < device.value_chunks(); ++v) {
    const PartLayout part = device.value_chunk();
    const uint8_t* const chunk = block + device.value_offset(v) + kPeakBytes;
    const int group = 32 * v / values.group;
    for (int t = 0; t < kTokensPerPage; ++t) {
      store16(value_part + uniform_layout.range_offset(group) + 2 * t, load16(chunk + part.parameter_byte(t)));
      store16(value_part + uniform_layout.lo_offset(group) + 2 * t, load16(chunk + part.parameter_byte(t) + 2));
      for (int c = 0; c < 32; ++c) {
        const Place from = part.code_place(0, t, c);
        const int code = chunk[part.parameter_bytes() + from.byte] >> from.bit & ((1 << values.bits) - 1);
        plane.put(value_part + uniform_layout.plane_offset[0], t, 32 * v + c, code);
      }
    }
  }
  return layout.bytes;
}

}  // namespace kvasir::cuda
