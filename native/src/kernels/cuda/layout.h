// How pages and 16-bit rows lie in device memory: in the order in which tensor-core fragments want them.
//
// Attention contracts a matrix of codes along x (channels of keys, tokens of values) for each of its y (the others).
// Device memory holds it as groups of 512 bytes: 16 bytes for each lane of a warp, so that one 128-bit load a lane
// brings A fragments of mma.m16n8k32 (codes, 8 bits after unpacking) or mma.m16n8k16 (float16) with nothing to shuffle.
//
//   head block   key part, then the value parts (one per 128 channels)          one kv head of one page
//   part         parameters {range, lo} of each x, then groups                  float16 parts have no parameters
//   row tile     key groups, then value groups of 16 tokens in float16          sinks and windows
//
// docs/performance.md says why. Conversion from and to the canonical layout is in convert.h.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace kvasir::cuda {

constexpr int kTokensPerPage = 128;
constexpr int kTileSize = 16;  // y of a fragment; also tokens of a row tile
constexpr int kGroupBytes = 512;
constexpr int kChunkGroups = 8;   // most groups that are copied to shared memory together
constexpr int kValueSpan = 128;   // most channels of a value part: a token's parameters span as many
constexpr int kFloat16Bits = 16;  // the width that means float16 elements instead of codes

// Where a code or a 16-bit element starts.
struct Place {
  int byte;  // from the first group of the part
  int bit;
};

// Lane, register and byte of (x, y) in the A fragment of mma.m16n8k32. The order of x inside a step of 32 is the one in
// which transposing packed query or weight bytes yields B fragments (fold.cuh).
KVASIR_HOST_DEVICE constexpr int fragment_byte(int x, int y) {
  const int lane = 4 * (y % 8) + x % 8 / 2;
  const int word = y % 16 / 8 + 2 * (x % 32 / 16);
  return 16 * lane + 4 * word + 2 * (x % 2) + x % 16 / 8;
}

// The same for 16-bit elements and mma.m16n8k16, in its natural order.
KVASIR_HOST_DEVICE constexpr int fragment_byte16(int x, int y) {
  const int lane = 4 * (y % 8) + x % 8 / 2;
  const int word = y % 16 / 8 + 2 * (x % 16 / 8);
  return 16 * lane + 4 * word + 2 * (x % 2);
}

// Codes of even tiles of y are unpacked by masking alone; those of odd tiles stand higher in the byte and come out
// multiplied by this. The result of their tile is divided by it.
KVASIR_HOST_DEVICE constexpr int odd_tile_factor(int bits) {
  return bits == 1 ? 2 : bits == 2 || bits == 3 ? 4 : bits == 4 ? 16 : 1;
}

// One side of one kv head of one page: keys (x = channels, y = tokens), or up to kValueSpan channels of the values
// (x = tokens, y = channels).
struct PartLayout {
  int bits;  // 1, 2, 3, 4, 8, or kFloat16Bits
  int x_size;
  int y_size;

  KVASIR_HOST_DEVICE constexpr int parameter_bytes() const { return bits == kFloat16Bits ? 0 : 4 * x_size; }
  KVASIR_HOST_DEVICE constexpr int groups() const { return x_size * y_size / 8 * bits / kGroupBytes; }
  KVASIR_HOST_DEVICE constexpr int bytes() const { return parameter_bytes() + groups() * kGroupBytes; }

  // {uint16 range, uint16 lo} of x: a lane finds those of x = lane / 4, + 8, + 16, ... four at a time.
  KVASIR_HOST_DEVICE constexpr int parameter_byte(int x) const { return x / 32 * 128 + x % 8 * 16 + x / 8 % 4 * 4; }

  // Codes of one plane: the only one, or of 3 bits the low two (plane 0) and the high one (plane 1).
  KVASIR_HOST_DEVICE constexpr Place code_place(int plane, int x, int y) const {
    // Tiles are taken in pairs, an even and an odd one; `unit` counts fragments of the even ones.
    const int unit = y / 32 * (x_size / 32) + x / 32;
    const int odd = y / 16 % 2;
    int group = 0, bit = 0;
    if (bits == 1) {
      group = unit / 4;
      bit = 2 * (unit % 4) + odd;
    } else if (bits == 2) {
      group = unit / 2;
      bit = 4 * (unit % 2) + 2 * odd;
    } else if (bits == 4) {
      group = unit;
      bit = 4 * odd;
    } else if (bits == 8) {
      group = 2 * unit + odd;
    } else if (plane == 0) {  // 3 bits: two groups of low bits, then one of high bits for the same codes
      group = unit / 4 * 3 + unit % 4 / 2;
      bit = 4 * (unit % 2) + 2 * odd;
    } else {
      group = unit / 4 * 3 + 2;
      bit = unit % 4 / 2 * 4 + unit % 2 + 2 * odd;
    }
    return {group * kGroupBytes + fragment_byte(x, y), bit};
  }

  KVASIR_HOST_DEVICE constexpr int float16_byte(int x, int y) const {
    return (y / 16 * (x_size / 16) + x / 16) * kGroupBytes + fragment_byte16(x, y);
  }
};

// A head block: what one kv head of a page takes.
struct HeadLayout {
  int head_dim;
  int key_bits;
  int value_bits;

  KVASIR_HOST_DEVICE constexpr PartLayout key() const { return {key_bits, head_dim, kTokensPerPage}; }
  KVASIR_HOST_DEVICE constexpr PartLayout value() const {
    return {value_bits, kTokensPerPage, head_dim < kValueSpan ? head_dim : kValueSpan};
  }
  KVASIR_HOST_DEVICE constexpr int value_parts() const { return head_dim > kValueSpan ? head_dim / kValueSpan : 1; }
  KVASIR_HOST_DEVICE constexpr int value_offset(int part) const { return key().bytes() + part * value().bytes(); }
  KVASIR_HOST_DEVICE constexpr int bytes() const { return value_offset(value_parts()); }
};

// Row tiles: 16 tokens of one kv head. Rows that were never written must hold zeros.
struct RowTileLayout {
  int head_dim;

  KVASIR_HOST_DEVICE constexpr int groups() const { return head_dim / 16; }  // of one side
  KVASIR_HOST_DEVICE constexpr int bytes() const { return 2 * groups() * kGroupBytes; }
  KVASIR_HOST_DEVICE constexpr int key_byte(int token, int channel) const {
    return channel / 16 * kGroupBytes + fragment_byte16(channel, token);
  }
  KVASIR_HOST_DEVICE constexpr int value_byte(int token, int channel) const {
    return (groups() + channel / 16) * kGroupBytes + fragment_byte16(token, channel);
  }
};

constexpr bool head_dim_supported(int d) { return d == 64 || d == 96 || d == 128 || d == 256; }
constexpr bool bits_supported(int bits) {
  return bits == 1 || bits == 2 || bits == 3 || bits == 4 || bits == 8 || bits == kFloat16Bits;
}

static_assert(HeadLayout{128, 2, 2}.bytes() == 2 * (512 + 4096), "2.25 bits per element");
static_assert(HeadLayout{256, 4, 4}.bytes() == 1024 + 16384 + 2 * (512 + 8192), "one value part per 128 channels");

}  // namespace kvasir::cuda
