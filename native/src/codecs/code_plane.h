// A code plane: a matrix of 1-, 2-, 4- or 8-bit codes, laid out so that attention contracts it with byte dot products.
//
// `x` is the contracted index (channels of keys, tokens of values), `y` the other. A 64-byte vector holds 16 y, one per
// 32-bit lane, and 4 * (8 / bits) consecutive x. docs/format.md has the picture and a worked example.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"

namespace kvasir {

struct CodePlane {
  int bits;   // 1, 2, 4 or 8
  int shift;  // the plane holds bits shift .. shift + bits - 1 of the code
  int x_size;
  int y_size;  // a multiple of 16

  static constexpr int kLanes = 16;
  static constexpr int kVectorBytes = 64;

  KVASIR_HOST_DEVICE int codes_per_byte() const { return 8 / bits; }
  KVASIR_HOST_DEVICE int x_per_vector() const { return 4 * codes_per_byte(); }
  KVASIR_HOST_DEVICE int vectors_per_row() const { return (x_size + x_per_vector() - 1) / x_per_vector(); }
  KVASIR_HOST_DEVICE size_t bytes() const {
    return static_cast<size_t>(y_size / kLanes) * vectors_per_row() * kVectorBytes;
  }
  // The byte that holds the code of (x, y), and the position of its lowest bit in it.
  KVASIR_HOST_DEVICE size_t byte_of(int x, int y) const {
    const size_t vector = static_cast<size_t>(y / kLanes) * vectors_per_row() + x / x_per_vector();
    return vector * kVectorBytes + static_cast<size_t>(y % kLanes) * 4 + x % 4;
  }
  KVASIR_HOST_DEVICE int bit_of(int x) const { return x % x_per_vector() / 4 * bits; }

  KVASIR_HOST_DEVICE int get(const uint8_t* plane, int x, int y) const {
    return (plane[byte_of(x, y)] >> bit_of(x)) & ((1 << bits) - 1);
  }
  // Takes its bits of `code`; the target bits must be 0.
  KVASIR_HOST_DEVICE void put(uint8_t* plane, int x, int y, int code) const {
    const int part = (code >> shift) & ((1 << bits) - 1);
    plane[byte_of(x, y)] = static_cast<uint8_t>(plane[byte_of(x, y)] | (part << bit_of(x)));
  }
};

}  // namespace kvasir
