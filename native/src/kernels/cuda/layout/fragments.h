// How pages and 16-bit rows lie in device memory: in the order in which tensor-core fragments want them.
//
// Attention contracts a matrix of codes along x (channels of keys, tokens of values) for each of its y (the others).
// Device memory holds it as groups of 512 bytes: 16 bytes for each lane of a warp, so that one 128-bit load a lane
// brings A fragments of mma.m16n8k32 (codes, 8 bits after unpacking) or mma.m16n8k16 (float16) with nothing to shuffle.
//
//   head block   key parts, then the value parts (one per 128 channels)         one kv head of one page
//   part         parameters {range, lo} of each x or of each y, then groups     float16 parts have no parameters
//   row tile     key groups, then value groups of 16 tokens in float16          sinks and windows
//
// Parameters belong to x where scales fold into the factors that multiply codes: keys whose channels have parameters,
// and values, whose tokens have them. Keys may have parameters per token instead (HeadLayout::token_keys). They then
// belong to y and multiply the sums: with s(y) = sum over x of query(x) * code(x, y),
//
//   score(y) = step(y) * s(y)  +  base(y) * sum over x of query(x)
//
// y takes the place of x in parameter_byte, so that the lane which holds sums of rows g, g + 8, ... of C (g = lane / 4)
// loads their parameters four at a time. A token has parameters for each 128 channels, as values have: such keys
// lie in key_parts() parts of up to 128 channels, whose scores add up.
//
// docs/kernels.md says why. Conversion from and to the canonical layout is in pack.h.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kvasir/types.h"

namespace kvasir::cuda {

constexpr int kTileSize = 16;  // y of a fragment; also tokens of a row tile
constexpr int kGroupBytes = 512;
constexpr int kChunkGroups = 8;           // most groups that are copied to shared memory together
constexpr int kValueSpan = 128;           // most channels of a value part: a token's parameters span as many
constexpr int kFloat16Bits = 16;          // the width that means float16 elements instead of codes
constexpr int kWideBits = 17;             // the width that means codes of 16 bits, in two planes of 8
constexpr int kLabelBytes = kPageTokens;  // of one side
constexpr int kBothLabelBytes = 2 * kLabelBytes;

// Where a code or a 16-bit element starts.
struct Place {
  int byte;  // from the first group of the part
  int bit;
};

// Lane, register and byte of (x, y) in the A fragment of mma.m16n8k32. The order of x inside a step of 32 is the one in
// which transposing packed query or weight bytes yields B fragments (attend/folded_factors.cuh).
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

// Codes are unpacked by masking alone. Tiles of y whose codes do not stand lowest in the byte come out multiplied by
// this, and the result of the tile is divided by it. Tiles come in pairs, or in fours (PartLayout::fours).
KVASIR_HOST_DEVICE constexpr int tile_factor(int bits, bool fours, int tile) {
  if (fours) return 1 << 2 * (tile % 4);
  return tile % 2 == 0 ? 1 : bits == 1 ? 2 : bits == 2 || bits == 3 ? 4 : bits == 4 ? 16 : 1;
}

// For PartLayout::fours: steps of 32 x, pairs of tiles of y. Shrinking wants runs of steps to be a power of two.
KVASIR_HOST_DEVICE constexpr bool in_fours(int steps, int pairs) {
  return pairs % 2 == 0 && (steps & (steps - 1)) == 0;
}

// One side of one kv head of one page: keys (x = channels, y = tokens), or up to kValueSpan channels of the values
// (x = tokens, y = channels).
struct PartLayout {
  int bits;  // 1, 2, 3, 4, 8, kFloat16Bits or kWideBits
  int x_size;
  int y_size;
  bool y_parameters = false;  // parameters belong to y, else to x

  KVASIR_HOST_DEVICE constexpr int element_bits() const { return bits == kWideBits ? 16 : bits; }
  KVASIR_HOST_DEVICE constexpr int parameters() const {
    return bits == kFloat16Bits ? 0 : y_parameters ? y_size : x_size;
  }
  KVASIR_HOST_DEVICE constexpr int parameter_bytes() const { return 4 * parameters(); }
  KVASIR_HOST_DEVICE constexpr int groups() const { return x_size * y_size / 8 * element_bits() / kGroupBytes; }
  KVASIR_HOST_DEVICE constexpr int bytes() const { return parameter_bytes() + groups() * kGroupBytes; }

  // {uint16 range, uint16 lo} of index i, an x or a y: a lane finds those of i = lane / 4, + 8, + 16, ... four at a
  // time.
  KVASIR_HOST_DEVICE constexpr int parameter_byte(int i) const { return i / 32 * 128 + i % 8 * 16 + i / 8 % 4 * 4; }

  // Codes of 2 bits: the four of a byte are of four tiles, so that none is shifted. Where that does not come out even
  // they are of two tiles and two steps of x, as other widths have it.
  KVASIR_HOST_DEVICE constexpr bool fours() const { return bits == 2 && in_fours(x_size / 32, y_size / 32); }
  // Codes of 2 bits: the 32 x and 32 y, counted along x first, that fill half (0 or 1) of the bytes of a group.
  KVASIR_HOST_DEVICE constexpr int half_unit(int group, int half) const {
    const int steps = x_size / 32;
    return fours() ? (2 * (group / steps) + half) * steps + group % steps : 2 * group + half;
  }

  KVASIR_HOST_DEVICE constexpr int planes() const { return bits == 3 || bits == kWideBits ? 2 : 1; }
  // Bits of a code that plane p holds, and the lowest of them.
  KVASIR_HOST_DEVICE constexpr int plane_bits(int p) const { return bits == kWideBits ? 8 : bits == 3 ? 2 - p : bits; }
  KVASIR_HOST_DEVICE constexpr int plane_shift(int p) const { return p == 0 ? 0 : plane_bits(0); }

  // Codes of one plane: the only one; or of 3 bits the low two (plane 0) and the high one (plane 1); or of 16 bits the
  // low byte (plane 0) and the high byte (plane 1), the groups of the two in turn.
  KVASIR_HOST_DEVICE constexpr Place code_place(int plane, int x, int y) const {
    // Tiles are taken in pairs, an even and an odd one; `unit` counts fragments of the even ones.
    const int unit = y / 32 * (x_size / 32) + x / 32;
    const int odd = y / 16 % 2;
    int group = 0, bit = 0;
    if (bits == 1) {
      group = unit / 4;
      bit = 2 * (unit % 4) + odd;
    } else if (fours()) {
      group = y / 64 * (x_size / 32) + x / 32;
      bit = y / 16 % 4 * 2;
    } else if (bits == 2) {
      group = unit / 2;
      bit = 4 * (unit % 2) + 2 * odd;
    } else if (bits == 4) {
      group = unit;
      bit = 4 * odd;
    } else if (bits == 8) {
      group = 2 * unit + odd;
    } else if (bits == kWideBits) {
      group = 2 * (2 * unit + odd) + plane;
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
  bool token_keys = false;  // keys have parameters per token, else per channel; float16 keys have neither
  bool labels = false;      // labels of both sides stand before the parts (labels.h)
  bool key_cells = false;   // what codes mean, of no matter here: uniform::Codes::cells
  bool value_cells = false;

  KVASIR_HOST_DEVICE constexpr int span() const { return head_dim < kValueSpan ? head_dim : kValueSpan; }
  KVASIR_HOST_DEVICE constexpr PartLayout key() const {
    return {key_bits, token_keys ? span() : head_dim, kPageTokens, token_keys};
  }
  KVASIR_HOST_DEVICE constexpr PartLayout value() const { return {value_bits, kPageTokens, span(), false}; }
  KVASIR_HOST_DEVICE constexpr int key_parts() const { return token_keys ? head_dim / span() : 1; }
  KVASIR_HOST_DEVICE constexpr int value_parts() const { return head_dim / span(); }
  KVASIR_HOST_DEVICE constexpr int label_bytes() const { return labels ? kBothLabelBytes : 0; }
  // From where the parts begin, behind the labels.
  KVASIR_HOST_DEVICE constexpr int key_offset(int part) const { return part * key().bytes(); }
  KVASIR_HOST_DEVICE constexpr int value_offset(int part) const {
    return key_offset(key_parts()) + part * value().bytes();
  }
  KVASIR_HOST_DEVICE constexpr int part_bytes() const { return value_offset(value_parts()); }
  KVASIR_HOST_DEVICE constexpr int bytes() const { return label_bytes() + part_bytes(); }
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
// What attention reads.
constexpr bool bits_supported(int bits) {
  return bits == 1 || bits == 2 || bits == 3 || bits == 4 || bits == 8 || bits == kFloat16Bits;
}

static_assert(HeadLayout{128, 2, 2}.bytes() == 2 * (512 + 4096), "2.25 bits per element");
static_assert(HeadLayout{256, 4, 4}.bytes() == 1024 + 16384 + 2 * (512 + 8192), "one value part per 128 channels");
static_assert(HeadLayout{256, 4, 4, true}.bytes() == 4 * (512 + 8192), "token keys: one part per 128 channels");
static_assert(HeadLayout{128, kWideBits, kWideBits}.bytes() == 2 * (512 + 32768), "16.25 bits per element");

}  // namespace kvasir::cuda
