// Part layout of the tiered codec: keys whose channels have 16, 4 or 2 bits, as many of each as the page needs.
//
//   offset 0             uint16 n16, uint16 n4: channels of the two wider tiers; the other d - n16 - n4 have 2 bits
//   offset 4             uint8 channel[d]: the channels of the 16-bit tier, then of the 4-bit, then of the 2-bit one
//   offset 4 + d         for each group of tokens: uint16 lo[columns], uint16 range[columns]; or uint8 (parameters.h)
//   next multiple of 64  16-bit tier: uint16 value[n16][kPageTokens], float16 bits
//   then                 4-bit codes, then 2-bit codes, in planes of 64-byte vectors
//
// The 16-bit tier stores the elements themselves: they are float16 values, so it is exact, and it needs no parameters.
// The columns are the channels of the other tiers, each tier padded to a multiple of four. Only the 2-bit tier, and the
// 4-bit tier where it is the last one, are ever padded, so there are never more columns than channels.
//
// A vector of a plane holds four columns of 16 * (8 / bits) tokens: 32-bit lane l, byte i, bits p * bits and up are the
// code of column 4 * (column / 4) + i and token 16 * (8 / bits) * block + 16 * p + l. So tiers begin and end at any
// multiple of four channels, where the planes of code_plane.h would need sixteen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"
#include "codecs/page_format.h"

namespace kvasir::tiered {

// Indices into PageFormat::numbers.
enum Number {
  kMode,   // see Mode
  kTau16,  // thresholds of the two wider tiers
  kTau4,
  kKeyBits,        // BUDGET: the mean bits of a channel to aim at
  kQueries,        // 1: saliency counts what queries do with a channel, 0: its error alone
  kParameterBits,  // of lo and of range: 8, or 0 for 16
};

enum Mode {
  kNormalised,  // thresholds on a channel's share of the mean saliency
  kAbsolute,    // on the saliency itself
  kBudget,      // thresholds found such that channels have kKeyBits on average
};

KVASIR_HOST_DEVICE static inline Mode mode_of(const PageFormat& format) {
  return static_cast<Mode>(format.numbers[kMode]);
}
KVASIR_HOST_DEVICE static inline bool goes_by_queries(const PageFormat& format) {
  return format.numbers[kQueries] != 0.0f;
}

KVASIR_HOST_DEVICE static inline int parameter_bytes(const PageFormat& format) {
  return format.numbers[kParameterBits] == 8.0f ? 1 : 2;
}

constexpr int kColumnsPerVector = 4;
constexpr int kVectorBytes = 64;
constexpr int kCountBytes = 4;

KVASIR_HOST_DEVICE static inline int padded(int channels) {
  return (channels + kColumnsPerVector - 1) / kColumnsPerVector * kColumnsPerVector;
}

// The codes of one tier.
struct Plane {
  int bits;     // 4 or 2
  int columns;  // a multiple of four

  KVASIR_HOST_DEVICE int tokens_per_vector() const { return 16 * (8 / bits); }
  KVASIR_HOST_DEVICE size_t block_bytes() const {
    return static_cast<size_t>(columns / kColumnsPerVector) * kVectorBytes;
  }
  KVASIR_HOST_DEVICE size_t bytes() const { return kPageTokens / tokens_per_vector() * block_bytes(); }
  KVASIR_HOST_DEVICE size_t byte_of(int column, int token) const {
    return token / tokens_per_vector() * block_bytes() +
           static_cast<size_t>(column / kColumnsPerVector) * kVectorBytes + token % 16 * 4 + column % kColumnsPerVector;
  }
  KVASIR_HOST_DEVICE int bit_of(int token) const { return token % tokens_per_vector() / 16 * bits; }
};

struct Layout {
  int head_dim;
  int groups;  // of tokens
  int group;   // tokens of one
  int parameter_bytes;
  int n16, n4, n2;
  int columns;
  Grid narrow_grid;  // of the 2-bit tier; 4-bit codes go from end to end
  Plane wide;        // the 4-bit tier, columns 0 ..
  Plane narrow;      // the 2-bit tier, columns wide.columns ..
  size_t values_offset;
  size_t wide_offset;
  size_t narrow_offset;
  size_t bytes;

  KVASIR_HOST_DEVICE size_t parameters_offset() const { return kCountBytes + static_cast<size_t>(head_dim); }
  KVASIR_HOST_DEVICE size_t lo_offset(int g) const {
    return parameters_offset() + static_cast<size_t>(g) * 2 * parameter_bytes * columns;
  }
  KVASIR_HOST_DEVICE size_t range_offset(int g) const {
    return lo_offset(g) + static_cast<size_t>(parameter_bytes) * columns;
  }
  KVASIR_HOST_DEVICE size_t parameters_end() const { return lo_offset(groups); }
  KVASIR_HOST_DEVICE size_t value_offset(int i) const {
    return values_offset + static_cast<size_t>(i) * 2 * kPageTokens;
  }

  // Where in channel[] the channel of a column is; -1 for padding.
  KVASIR_HOST_DEVICE int place_of(int column) const {
    if (column < n4) return n16 + column;
    const int i = column - wide.columns;
    return i >= 0 && i < n2 ? n16 + n4 + i : -1;
  }
  KVASIR_HOST_DEVICE int bits_of(int column) const { return column < wide.columns ? wide.bits : narrow.bits; }
  KVASIR_HOST_DEVICE Grid grid_of(int column) const { return column < wide.columns ? Grid::kEnds : narrow_grid; }
};

KVASIR_HOST_DEVICE static inline Layout layout_of(const PageFormat& format, int n16, int n4) {
  Layout layout = {};
  layout.head_dim = format.head_dim;
  layout.group = format.group;
  layout.groups = kPageTokens / format.group;
  layout.parameter_bytes = parameter_bytes(format);
  layout.n16 = n16;
  layout.n4 = n4;
  layout.n2 = format.head_dim - n16 - n4;
  layout.narrow_grid = format.grid;
  layout.wide = {4, padded(n4)};
  layout.narrow = {2, padded(layout.n2)};
  layout.columns = layout.wide.columns + layout.narrow.columns;
  layout.values_offset = (layout.parameters_end() + 63) / 64 * 64;
  layout.wide_offset = layout.value_offset(n16);
  layout.narrow_offset = layout.wide_offset + layout.wide.bytes();
  layout.bytes = layout.narrow_offset + layout.narrow.bytes();
  return layout;
}

// The layout of a part whose head is written.
KVASIR_HOST_DEVICE static inline Layout layout_of(const PageFormat& format, const uint8_t* part) {
  return layout_of(format, part[0] | part[1] << 8, part[2] | part[3] << 8);
}

KVASIR_HOST_DEVICE static inline const uint8_t* channels_of(const uint8_t* part) { return part + kCountBytes; }

// The most bytes that come before the values: with no 16-bit tier, every channel is a column.
KVASIR_HOST_DEVICE static inline size_t head_bytes(const PageFormat& format) {
  return layout_of(format, 0, 0).values_offset;
}

static_assert(2 * kPageTokens % 64 == 0, "parts are multiples of 64 bytes: rows of the 16-bit tier");
static_assert(kPageTokens % (16 * (8 / 2)) == 0, "and blocks of both planes");

}  // namespace kvasir::tiered
