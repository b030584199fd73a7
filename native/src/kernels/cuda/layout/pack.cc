#include "kernels/cuda/layout/pack.h"

#include <algorithm>
#include <cstring>

#include "codecs/uniform/format.h"

namespace kvasir::cuda {
namespace {

PageFormat uniform_format(Side side, const PartLayout& part, int head_dim) {
  PageFormat format;
  format.side = side;
  format.head_dim = head_dim;
  format.bits = part.element_bits();
  const bool by_channel = side == Side::kKeys && !part.y_parameters;
  format.axis = by_channel ? Axis::kChannel : Axis::kToken;
  format.group = by_channel ? kPageTokens : std::min(head_dim, kValueSpan);
  return format;
}

void copy16(const uint8_t* from, uint8_t* to) { std::memcpy(to, from, 2); }

void put_bits(uint8_t* byte, int bit, int width, int value) {
  const int mask = ((1 << width) - 1) << bit;
  *byte = static_cast<uint8_t>((*byte & ~mask) | (value << bit & mask));
}

// One part and the canonical bytes of its side.
struct Part {
  PartLayout device;
  Side side;
  int head_dim;
  int first_x, first_y;  // of the part in the side's matrix
  int group;             // of the canonical parameters

  uint8_t* canonical16(uint8_t* side_bytes, int x, int y) const {
    const int token = side == Side::kKeys ? y : x;
    const int channel = side == Side::kKeys ? first_x + x : first_y + y;
    return side_bytes + 2 * (static_cast<size_t>(token) * head_dim + channel);
  }

  void pack(uint8_t* canonical, uint8_t* part) const { convert(canonical, part, true); }
  void unpack(uint8_t* canonical, uint8_t* part) const { convert(canonical, part, false); }

 private:
  void convert(uint8_t* canonical, uint8_t* part, bool to_device) const {
    uint8_t* groups = part + device.parameter_bytes();
    if (device.bits == kFloat16Bits) {
      for (int y = 0; y < device.y_size; ++y) {
        for (int x = 0; x < device.x_size; ++x) {
          uint8_t* ours = groups + device.float16_byte(x, y);
          to_device ? copy16(canonical16(canonical, x, y), ours) : copy16(ours, canonical16(canonical, x, y));
        }
      }
      return;
    }
    const uniform::Layout format = uniform::layout_of(uniform_format(side, device, head_dim));
    for (int i = 0; i < device.parameters(); ++i) {
      uint8_t* range = canonical + format.range_offset(group) + 2 * static_cast<size_t>(i);
      uint8_t* lo = canonical + format.lo_offset(group) + 2 * static_cast<size_t>(i);
      uint8_t* ours = part + device.parameter_byte(i);
      to_device ? copy16(range, ours) : copy16(ours, range);
      to_device ? copy16(lo, ours + 2) : copy16(ours + 2, lo);
    }
    for (int p = 0; p < format.plane_count; ++p) {
      const CodePlane& plane = format.planes[p];
      uint8_t* bytes = canonical + format.plane_offset[p];
      for (int y = 0; y < device.y_size; ++y) {
        for (int x = 0; x < device.x_size; ++x) {
          const Place place = device.code_place(p, x, y);
          uint8_t* ours = groups + place.byte;
          uint8_t* theirs = bytes + plane.byte_of(first_x + x, first_y + y);
          const int bit = plane.bit_of(first_x + x);
          const int mask = (1 << plane.bits) - 1;
          if (to_device) {
            put_bits(ours, place.bit, plane.bits, *theirs >> bit & mask);
          } else {
            put_bits(theirs, bit, plane.bits, *ours >> place.bit & mask);
          }
        }
      }
    }
  }
};

Part key_part(const HeadLayout& layout, int part) {
  return {layout.key(), Side::kKeys, layout.head_dim, part * kValueSpan, 0, part};
}

Part value_part(const HeadLayout& layout, int part) {
  return {layout.value(), Side::kValues, layout.head_dim, 0, part * kValueSpan, part};
}

}  // namespace

// The canonical side is only read by pack and the device side only by unpack: the casts are safe.
void pack_keys(const HeadLayout& layout, const uint8_t* keys, uint8_t* block) {
  for (int p = 0; p < layout.key_parts(); ++p) {
    key_part(layout, p).pack(const_cast<uint8_t*>(keys), block + layout.key_offset(p));
  }
}

void pack_values(const HeadLayout& layout, const uint8_t* values, uint8_t* block) {
  for (int p = 0; p < layout.value_parts(); ++p) {
    value_part(layout, p).pack(const_cast<uint8_t*>(values), block + layout.value_offset(p));
  }
}

void unpack_keys(const HeadLayout& layout, const uint8_t* block, uint8_t* keys) {
  for (int p = 0; p < layout.key_parts(); ++p) {
    key_part(layout, p).unpack(keys, const_cast<uint8_t*>(block) + layout.key_offset(p));
  }
}

void unpack_values(const HeadLayout& layout, const uint8_t* block, uint8_t* values) {
  for (int p = 0; p < layout.value_parts(); ++p) {
    value_part(layout, p).unpack(values, const_cast<uint8_t*>(block) + layout.value_offset(p));
  }
}

}  // namespace kvasir::cuda
