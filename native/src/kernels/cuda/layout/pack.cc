#include "kernels/cuda/layout/pack.h"

#include <cstring>

#include "kernels/cuda/layout/part_pairs.h"

namespace kvasir::cuda {
namespace {

void copy16(const uint8_t* from, uint8_t* to) { std::memcpy(to, from, 2); }

void put_bits(uint8_t* byte, int bit, int width, int value) {
  const int mask = ((1 << width) - 1) << bit;
  *byte = static_cast<uint8_t>((*byte & ~mask) | (value << bit & mask));
}

void convert(const PartPair& pair, uint8_t* canonical, uint8_t* part, bool to_device) {
  const PartLayout& device = pair.device;
  uint8_t* groups = part + device.parameter_bytes();
  if (device.bits == kFloat16Bits) {
    for (int y = 0; y < device.y_size; ++y) {
      for (int x = 0; x < device.x_size; ++x) {
        uint8_t* ours = groups + device.float16_byte(x, y);
        uint8_t* theirs = canonical + pair.canonical16(x, y);
        to_device ? copy16(theirs, ours) : copy16(ours, theirs);
      }
    }
    return;
  }
  const uniform::Layout format = pair.canonical();
  for (int i = 0; i < device.parameters(); ++i) {
    uint8_t* range = canonical + format.range_offset(pair.group) + 2 * static_cast<size_t>(i);
    uint8_t* lo = canonical + format.lo_offset(pair.group) + 2 * static_cast<size_t>(i);
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
        uint8_t* theirs = bytes + plane.byte_of(pair.first_x + x, pair.first_y + y);
        const int bit = plane.bit_of(pair.first_x + x);
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

}  // namespace

// The canonical side is only read by pack and the device side only by unpack: the casts are safe.
void pack_keys(const HeadLayout& layout, const uint8_t* keys, uint8_t* block) {
  for (int p = 0; p < layout.key_parts(); ++p) {
    convert(key_pair(layout, p), const_cast<uint8_t*>(keys), block + layout.key_offset(p), true);
  }
}

void pack_values(const HeadLayout& layout, const uint8_t* values, uint8_t* block) {
  for (int p = 0; p < layout.value_parts(); ++p) {
    convert(value_pair(layout, p), const_cast<uint8_t*>(values), block + layout.value_offset(p), true);
  }
}

void unpack_keys(const HeadLayout& layout, const uint8_t* block, uint8_t* keys) {
  for (int p = 0; p < layout.key_parts(); ++p) {
    convert(key_pair(layout, p), keys, const_cast<uint8_t*>(block) + layout.key_offset(p), false);
  }
}

void unpack_values(const HeadLayout& layout, const uint8_t* block, uint8_t* values) {
  for (int p = 0; p < layout.value_parts(); ++p) {
    convert(value_pair(layout, p), values, const_cast<uint8_t*>(block) + layout.value_offset(p), false);
  }
}

}  // namespace kvasir::cuda
