// Pages of tiered keys and uniform values in device memory, for attention: an exact re-ordering of the canonical parts.
//
//   page         TieredPlace[kv_heads], padded with zeros to a multiple of 128; then head blocks
//   head block   key bounds, wide chunks, narrow chunks, value groups, channels of the 16-bit tier, their elements;
//                padded to 128
//
// Attention multiplies bytes (layout/fragments.h). Tiers of 4 and 2 bits become one: a column of 2-bit codes for each
// channel of 2 bits, and two columns for each channel of 4, code = low + 4 * high. So 32 columns make a step of
// mma.m16n8k32 whatever their channels are, and a key chunk is one step for all 128 tokens. A wide chunk has 16
// channels of 4 bits, the low bits of channel x in column x and the high bits in column x + 16, which so share
// parameters. A narrow chunk has what is left: low columns, as many high ones, columns of 2 bits, padding. The last
// channels of 4 bits are in whichever takes fewer bytes.
//
//   key bounds    uint8 [head_dim]: half_range_bound of each channel's greatest range, 0 for those of 16 bits. With
//   them
//                 attention scales products by the greatest one that a query can give.
//   wide chunk    uint8 channel[8][2]: that of x = i + 8 j at [i][j];
//                 parameters {range, lo} of each channel for each group of tokens, then codes of each 32 tokens
//   narrow chunk  uint16 column[8][4]: that of x = i + 8 j at [i][j], channel + 256 * kind;
//                 parameters of each column for each group of tokens, then codes of each 32 tokens
//   value group   parameters {range, lo} of each token, then for each 32 channels the codes of a part of
//   layout/fragments.h:
//                 128 tokens, 32 channels
//
// Keys in groups of 64 tokens are stored as if in groups of 32, with equal parameters.
#pragma once

#include "codecs/page_format.h"
#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

// What a code counts, in fifteenths of the range; a code of cells counts less.
enum ColumnKind : int {
  kPadding = 0,
  kLowBits = 1,   // of a channel of 4 bits
  kHighBits = 4,  // its other column; has no lo
  kTwoBits = 5,   // the only column of a channel of 2 bits
};

constexpr int kColumnsPerChunk = 32;
constexpr int kWideChannels = 16;  // of a wide chunk
constexpr int kTokenSpans = 4;     // of 32 tokens
constexpr int kSpanCodeBytes = 32 * kColumnsPerChunk / 4;
constexpr int kKeyCodeBytes = kTokenSpans * kSpanCodeBytes;
constexpr int kWideParametersOffset = kWideChannels;
constexpr int kNarrowParametersOffset = 2 * kColumnsPerChunk;
constexpr int kWideGroupBytes = 4 * kWideChannels;       // parameters of a group of tokens
constexpr int kNarrowGroupBytes = 4 * kColumnsPerChunk;  // the same
constexpr int kValueParameterBytes = 4 * kPageTokens;

// The upper byte of a float16 that is at least half of `range`, bits of one that is not negative. Half of it, because
// the bound of the largest ranges would be infinite.
KVASIR_HOST_DEVICE constexpr uint8_t half_range_bound(int range) {
  const int half = range < 0x800 ? (range + 1) / 2 : range - 0x400;  // the first 0x800 are equidistant
  return static_cast<uint8_t>((half + 255) / 256);
}

// Where a head block is, from the beginning of the page, and how many channels have 16 and 4 bits.
struct TieredPlace {
  uint32_t offset;
  uint16_t n16;
  uint16_t n4;
};
static_assert(sizeof(TieredPlace) == 8, "read as one vector");
KVASIR_HOST_DEVICE constexpr int tiered_table_bytes(int kv_heads) {
  return (static_cast<int>(sizeof(TieredPlace)) * kv_heads + 127) / 128 * 128;
}

// What all blocks of a layer have in common.
struct TieredFormat {
  int head_dim;
  int value_bits;               // 2 or 4
  int key_group;                // tokens of a channel that share parameters: 32, or 128
  int value_group;              // channels of a token that do: a multiple of 32
  Grid key_grid = Grid::kEnds;  // of keys of 2 bits
  Grid value_grid = Grid::kEnds;

  KVASIR_HOST_DEVICE constexpr int key_groups() const { return kPageTokens / key_group; }
  KVASIR_HOST_DEVICE constexpr int wide_chunk_bytes() const {
    return kWideParametersOffset + key_groups() * kWideGroupBytes + kKeyCodeBytes;
  }
  KVASIR_HOST_DEVICE constexpr int narrow_chunk_bytes() const {
    return kNarrowParametersOffset + key_groups() * kNarrowGroupBytes + kKeyCodeBytes;
  }
  KVASIR_HOST_DEVICE constexpr int value_chunks() const { return head_dim / 32; }
  KVASIR_HOST_DEVICE constexpr int value_groups() const { return (head_dim + value_group - 1) / value_group; }
  KVASIR_HOST_DEVICE constexpr PartLayout value_chunk() const { return {value_bits, kPageTokens, 32}; }
  KVASIR_HOST_DEVICE constexpr int value_code_bytes() const { return kPageTokens * 32 / 8 * value_bits; }
  KVASIR_HOST_DEVICE constexpr int value_bytes() const {
    return value_groups() * kValueParameterBytes + value_chunks() * value_code_bytes();
  }
};

struct TieredColumn {
  int place;  // of its channel in channel[] of docs/format.md; 0 for padding
  ColumnKind kind;
};

struct TieredBlock {
  TieredFormat format;
  int n16, n4;
  int wide_chunks, narrow_chunks;

  // Chunks of keys, the wide ones first; x counts the columns of one.
  KVASIR_HOST_DEVICE constexpr int key_chunks() const { return wide_chunks + narrow_chunks; }
  KVASIR_HOST_DEVICE constexpr bool is_wide(int chunk) const { return chunk < wide_chunks; }
  KVASIR_HOST_DEVICE constexpr int key_offset(int chunk) const {
    const int wide_before = is_wide(chunk) ? chunk : wide_chunks;
    return format.head_dim + wide_before * format.wide_chunk_bytes() +
           (chunk - wide_before) * format.narrow_chunk_bytes();
  }
  KVASIR_HOST_DEVICE constexpr TieredColumn column(int chunk, int x) const {
    if (is_wide(chunk)) {
      const int channel = kWideChannels * chunk + x % kWideChannels;
      if (channel >= n4) return {0, kPadding};
      return {n16 + channel, x < kWideChannels ? kLowBits : kHighBits};
    }
    const int in_wide = wide_chunks * kWideChannels < n4 ? wide_chunks * kWideChannels : n4, rest = n4 - in_wide;
    const int i = (chunk - wide_chunks) * kColumnsPerChunk + x;
    if (i < rest) return {n16 + in_wide + i, kLowBits};
    if (i < 2 * rest) return {n16 + in_wide + i - rest, kHighBits};
    if (i - 2 * rest < format.head_dim - n16 - n4) return {n16 + n4 + i - 2 * rest, kTwoBits};
    return {0, kPadding};
  }
  // From the beginning of the block. Of a wide chunk columns 0..15 have a byte for their channel, and parameters.
  KVASIR_HOST_DEVICE constexpr int column_byte(int chunk, int x) const {
    return key_offset(chunk) + (is_wide(chunk) ? x % 8 * 2 + x / 8 : x % 8 * 8 + x / 8 * 2);
  }
  KVASIR_HOST_DEVICE constexpr int parameter_byte(int chunk, int x, int group) const {
    return key_offset(chunk) + (is_wide(chunk)
                                    ? kWideParametersOffset + group * kWideGroupBytes + x % 8 * 8 + x / 8 * 4
                                    : kNarrowParametersOffset + group * kNarrowGroupBytes + x % 8 * 16 + x / 8 * 4);
  }
  KVASIR_HOST_DEVICE constexpr int codes_offset(int chunk) const {
    return key_offset(chunk) + (is_wide(chunk) ? format.wide_chunk_bytes() : format.narrow_chunk_bytes()) -
           kKeyCodeBytes;
  }
  // Rows 8..15 of a tile of 16 tokens stand two bits higher, and come out four times as large.
  KVASIR_HOST_DEVICE constexpr Place code_place(int chunk, int x, int token) const {
    const int row = token % 16, lane = 4 * (row % 8) + x % 8 / 2;
    return {
        codes_offset(chunk) + token / 32 * kSpanCodeBytes + lane * 8 + token % 32 / 16 * 4 + 2 * (x % 2) + x % 16 / 8,
        2 * (row / 8) + 4 * (x / 16)};
  }

  // Chunk `v` of the values is that of channels 32 v .. 32 v + 31.
  KVASIR_HOST_DEVICE constexpr int value_group_of(int v) const { return 32 * v / format.value_group; }
  KVASIR_HOST_DEVICE constexpr int value_parameters_offset(int group) const {
    return key_offset(key_chunks()) + group * kValueParameterBytes +
           group * (format.value_group / 32) * format.value_code_bytes();
  }
  KVASIR_HOST_DEVICE constexpr int value_codes_offset(int v) const {
    return key_offset(key_chunks()) + (value_group_of(v) + 1) * kValueParameterBytes + v * format.value_code_bytes();
  }

  KVASIR_HOST_DEVICE constexpr int channels_offset() const { return key_offset(key_chunks()) + format.value_bytes(); }
  // Elements of the 16-bit tier: [n16][8][16], that of token i + 8 j at [i][j].
  KVASIR_HOST_DEVICE constexpr int elements_offset() const { return channels_offset() + (n16 + 15) / 16 * 16; }
  KVASIR_HOST_DEVICE constexpr int bytes() const { return (elements_offset() + 256 * n16 + 127) / 128 * 128; }
};

KVASIR_HOST_DEVICE constexpr int chunks_of(int columns) { return (columns + kColumnsPerChunk - 1) / kColumnsPerChunk; }

struct KeyChunks {
  int wide, narrow;
};
KVASIR_HOST_DEVICE constexpr KeyChunks key_chunks(int n2, int n4, int wide_bytes, int narrow_bytes) {
  const int whole = n4 / kWideChannels, rest = n4 % kWideChannels;
  // A wide chunk that is not full, or the rest among the narrow ones.
  const int mixed = chunks_of(2 * rest + n2), apart = chunks_of(n2);
  if (wide_bytes < (mixed - apart) * narrow_bytes) return {whole + 1, apart};
  return {whole, mixed};
}

KVASIR_HOST_DEVICE constexpr TieredBlock tiered_block(const TieredFormat& format, int n16, int n4) {
  const KeyChunks chunks =
      key_chunks(format.head_dim - n16 - n4, n4, format.wide_chunk_bytes(), format.narrow_chunk_bytes());
  return {format, n16, n4, chunks.wide, chunks.narrow};
}
KVASIR_HOST_DEVICE constexpr TieredBlock tiered_block(const TieredFormat& format, const TieredPlace& place) {
  return tiered_block(format, place.n16, place.n4);
}

// Whether attention has a kernel for these formats: head dims of layout/fragments.h; tiered keys with parameters of 16
// bits; uniform values of 2 or 4 bits by token, in groups that are whole multiples of 32 channels.
bool tiered_supported(const PageFormat& keys, const PageFormat& values);
TieredFormat tiered_format(const PageFormat& keys, const PageFormat& values);

// One kv head. keys, values: its canonical parts.
TieredBlock tiered_block(const PageFormat& keys, const PageFormat& values, const uint8_t* key_part);
void pack_tiered(const PageFormat& keys, const PageFormat& values, const uint8_t* key_part, const uint8_t* value_part,
                 uint8_t* block);
// Back: key_part must have room for the canonical part, whose bytes are returned; value_part for values.page_bytes.
size_t unpack_tiered(const PageFormat& keys, const PageFormat& values, const TieredBlock& layout, const uint8_t* block,
                     uint8_t* key_part, uint8_t* value_part);

static_assert(tiered_block({128, 4, 128, 128}, 4, 100).bytes() ==
                  128 + 6 * 1104 + 1216 + 512 + 4 * 2048 + 16 + 4 * 256 + 80,
              "4.33 bits per element");

}  // namespace kvasir::cuda
