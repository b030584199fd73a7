// Part layout of the spectral codec: rows in a basis of the layer's own, whose channels have 0, 1, 2, 4 or 8 bits.
//
// A part holds all kv heads of the layer, one after the other, each `head_bytes` long:
//
//   offset 0             three planes of d bits: bit c of plane i is bit i of channel c's class (0 .. 4)
//   then                 uint8 norm[kPageTokens], uint8 step[d], int8 low[d]
//   next multiple of 64  codes of 4 bits, of 2, of 1: columns of one width stand together
//
// Classes 0, 1, 2, 3 and 4 are widths of 0, 1, 2, 4 and 8 bits. As many channels of a head as a multiple of eight have
// each width, and all heads and pages of a side have as many bits: kTileBits of them, times eight channels.
//
// A column is a digit of a channel: one for each channel of 1, 2 or 4 bits; of 8 bits two of 4, which are 16 and 1
// times the step. The 4-bit columns are the high digits of 8-bit channels, the 4-bit channels, the low digits; within
// each, by channel. So a channel of 8 bits that gives up its lower ones leaves the rest as it is.
//
// Codes of keys lie as attention multiplies channels: a vector of 64 bytes holds four columns of 16 * (8 / bits)
// tokens; 32-bit lane l, byte i, bits p * bits and up are column 4 * (column / 4) + i, token 16 * p + l of the
// vector's. Vectors of one block of tokens stand together, by column. Those of values as it multiplies tokens: a vector
// of 32 bytes holds eight columns of 4 * (8 / bits) tokens; lane l, byte i, bits p * bits and up are column l, token 4
// * p + i of the vector's. Vectors of eight columns stand together, by token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "codecs/page_format.h"

namespace kvasir::spectral {

constexpr int kTile = 8;     // channels that share a width
constexpr int kClasses = 5;  // of widths
constexpr int kPlanes = 3;   // of columns: 4, 2 and 1 bits
constexpr int kMaxColumns = 2 * kMaxHeadDim;

KVASIR_HOST_DEVICE constexpr int width_of(int of_class) { return of_class == 0 ? 0 : 1 << (of_class - 1); }

// Indices into PageFormat::numbers.
enum Number {
  kTileBits,   // room for the widths of all tiles of a head, added up
  kFloorBits,  // what is left of it when a page has given up all that it may; 0: it may give up nothing
};

KVASIR_HOST_DEVICE static inline int tile_bits(const PageFormat& format) {
  return static_cast<int>(format.numbers[kTileBits]);
}

KVASIR_HOST_DEVICE static inline int floor_bits(const PageFormat& format) {
  return static_cast<int>(format.numbers[kFloorBits]);
}

// Offsets in what a part holds of one head.
struct Layout {
  int head_dim;
  size_t norms, steps, lows, codes, bytes;
};

KVASIR_HOST_DEVICE static inline Layout layout_of(const PageFormat& format) {
  Layout layout = {};
  const auto d = static_cast<size_t>(format.head_dim);
  layout.head_dim = format.head_dim;
  layout.norms = 3 * d / 8;
  layout.steps = layout.norms + kPageTokens;
  layout.lows = layout.steps + d;
  layout.codes = (layout.lows + d + 63) / 64 * 64;
  layout.bytes = layout.codes + static_cast<size_t>(tile_bits(format)) * kTile * kPageTokens / 8;
  return layout;
}

KVASIR_HOST_DEVICE static inline int class_of(const uint8_t* head, int head_dim, int channel) {
  int found = 0;
  for (int i = 0; i < 3; ++i) found |= (head[(i * head_dim + channel) / 8] >> channel % 8 & 1) << i;
  return found;
}

KVASIR_HOST_DEVICE static inline int plane_bits(int plane) { return 4 >> plane; }

// The columns of a head.
struct Columns {
  int count[kPlanes];  // of 4, 2 and 1 bits, each a multiple of eight
  int all;
  uint16_t channel[kMaxColumns];  // of each column, 4 bits first
  uint8_t factor[kMaxColumns];    // of its codes: 16 for a high digit, else 1

  KVASIR_HOST_DEVICE int first(int plane) const { return plane == 0 ? 0 : plane == 1 ? count[0] : count[0] + count[1]; }
};

static inline Columns columns_of(const uint8_t* head, int head_dim) {
  Columns columns;
  columns.all = 0;
  // Sixteen channels at a time: head dims are multiples of that.
  const auto add = [&](int of_class, int factor) {
    const int before = columns.all;
    for (int first = 0; first < head_dim; first += 16) {
      unsigned members = 0xFFFF;
      for (int i = 0; i < 3; ++i) {
        const uint8_t* plane = head + (i * head_dim + first) / 8;
        const unsigned bits = plane[0] | plane[1] << 8;
        members &= of_class >> i & 1 ? bits : ~bits;
      }
      for (; members != 0; members &= members - 1) {
        columns.channel[columns.all] = static_cast<uint16_t>(first + __builtin_ctz(members));
        columns.factor[columns.all++] = static_cast<uint8_t>(factor);
      }
    }
    return columns.all - before;
  };
  columns.count[0] = add(4, 16);
  columns.count[0] += add(3, 1);
  columns.count[0] += add(4, 1);
  columns.count[1] = add(2, 1);
  columns.count[2] = add(1, 1);
  return columns;
}

// High digits of the 4-bit plane; there are as many low ones.
KVASIR_HOST_DEVICE static inline int wide_columns(const Columns& columns) {
  int count = 0;
  while (count < columns.count[0] && columns.factor[count] == 16) ++count;
  return count;
}

// Where a plane of columns begins, from the codes on.
KVASIR_HOST_DEVICE static inline size_t plane_offset(const Columns& columns, int plane) {
  size_t offset = 0;
  for (int i = 0; i < plane; ++i) offset += static_cast<size_t>(columns.count[i]) * plane_bits(i) * kPageTokens / 8;
  return offset;
}

// A code in its plane: `column` counts from the plane's first.
struct CodePlace {
  size_t byte;
  int bit;
};

KVASIR_HOST_DEVICE static inline CodePlace key_place(int bits, int columns, int column, int token) {
  const int tokens = 16 * (8 / bits);  // of a vector
  const size_t vector = static_cast<size_t>(token / tokens) * (columns / 4) + column / 4;
  return {vector * 64 + token % 16 * 4 + column % 4, token % tokens / 16 * bits};
}

KVASIR_HOST_DEVICE static inline CodePlace value_place(int bits, int column, int token) {
  const int tokens = 4 * (8 / bits);
  const size_t vector = static_cast<size_t>(column / kTile) * (kPageTokens / tokens) + token / tokens;
  return {vector * 32 + column % kTile * 4 + token % 4, token % tokens / 4 * bits};
}

}  // namespace kvasir::spectral
