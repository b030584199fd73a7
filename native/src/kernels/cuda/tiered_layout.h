// Pages of tiered keys and uniform values in device memory, for attention: an exact re-ordering of the canonical parts.
//
//   page         TieredPlace[kv_heads], padded with zeros to a multiple of 128; then head blocks
//   head block   key chunks, value chunks, channels of the 16-bit tier, their elements; padded to 128
//
// Attention multiplies bytes (layout.h). Tiers of 4 and 2 bits become one: a column of 2-bit codes for each channel of
// 2 bits, and two columns for each channel of 4, code = low + 4 * high. So 32 columns make a step of mma.m16n8k32
// whatever their channels are, and a key chunk is one step for all 128 tokens. A value chunk is 32 channels.
//
//   key chunk    float peak[4]: the greatest range of any column of the block, by 32 tokens;
//                uint16 column[8][4]: that of x = i + 8 j at [i][j], channel + 256 * kind;
//                parameters {range, lo} of each column for each 32 tokens, then codes of each 32 tokens
//   value chunk  float peak[4]: the greatest range of any token, three times 0; then a part of layout.h: 128 tokens, 32
//                channels
//
// Groups of more than 32 tokens (keys) or 32 channels (values) repeat their parameters.
#pragma once

#include "codecs/page_format.h"
#include "kernels/cuda/layout.h"

namespace kvasir::cuda {

enum ColumnKind : int {
  kTwoBits,   // the only column of a channel of 2 bits
  kLowBits,   // of a channel of 4 bits
  kHighBits,  // its other column; has no lo
  kPadding,
};

constexpr int kColumnsPerChunk = 32;
constexpr int kTokenGroups = 4;  // of 32 tokens
constexpr int kPeakBytes = 4 * kTokenGroups;
constexpr int kColumnBytes = 2 * kColumnsPerChunk;
constexpr int kGroupParameterBytes = 4 * kColumnsPerChunk;
constexpr int kGroupCodeBytes = 32 * kColumnsPerChunk / 4;
constexpr int kParametersOffset = kPeakBytes + kColumnBytes;
constexpr int kCodesOffset = kParametersOffset + kTokenGroups * kGroupParameterBytes;
constexpr int kKeyChunkBytes = kCodesOffset + kTokenGroups * kGroupCodeBytes;

// Where a head block is, from the beginning of the page, and what it has.
struct TieredPlace {
  uint32_t offset;
  uint16_t key_chunks;
  uint16_t n16;  // channels of the 16-bit tier
};
static_assert(sizeof(TieredPlace) == 8, "read as one vector");
KVASIR_HOST_DEVICE constexpr int tiered_table_bytes(int kv_heads) {
  return (static_cast<int>(sizeof(TieredPlace)) * kv_heads + 127) / 128 * 128;
}

// Where in a key chunk.
KVASIR_HOST_DEVICE constexpr int column_byte(int x) { return kPeakBytes + x % 8 * 8 + x / 8 * 2; }
KVASIR_HOST_DEVICE constexpr int column_parameter_byte(int x, int group) {
  return kParametersOffset + group * kGroupParameterBytes + x % 8 * 16 + x / 8 * 4;
}
// Rows 8..15 of a tile of 16 tokens stand two bits higher, and come out four times as large.
KVASIR_HOST_DEVICE constexpr Place column_code_place(int x, int token) {
  const int row = token % 16, lane = 4 * (row % 8) + x % 8 / 2;
  return {kCodesOffset + token / 32 * kGroupCodeBytes + lane * 8 + token % 32 / 16 * 4 + 2 * (x % 2) + x % 16 / 8,
          2 * (row / 8) + 4 * (x / 16)};
}

struct TieredBlock {
  int head_dim;
  int value_bits;  // 2 or 4
  int key_chunks;
  int n16;

  KVASIR_HOST_DEVICE constexpr PartLayout value_chunk() const { return {value_bits, kTokensPerPage, 32}; }
  KVASIR_HOST_DEVICE constexpr int value_chunk_bytes() const { return kPeakBytes + value_chunk().bytes(); }
  KVASIR_HOST_DEVICE constexpr int value_chunks() const { return head_dim / 32; }
  KVASIR_HOST_DEVICE constexpr int key_offset(int chunk) const { return chunk * kKeyChunkBytes; }
  KVASIR_HOST_DEVICE constexpr int value_offset(int chunk) const {
    return key_offset(key_chunks) + chunk * value_chunk_bytes();
  }
  KVASIR_HOST_DEVICE constexpr int channels_offset() const { return value_offset(value_chunks()); }
  // Elements of the 16-bit tier: [n16][8][16], that of token i + 8 j at [i][j].
  KVASIR_HOST_DEVICE constexpr int elements_offset() const { return channels_offset() + (n16 + 15) / 16 * 16; }
  KVASIR_HOST_DEVICE constexpr int bytes() const { return (elements_offset() + 256 * n16 + 127) / 128 * 128; }
};

// Of a block that begins at `offset`.
KVASIR_HOST_DEVICE constexpr TieredPlace tiered_place(uint64_t offset, const TieredBlock& block) {
  return {static_cast<uint32_t>(offset), static_cast<uint16_t>(block.key_chunks), static_cast<uint16_t>(block.n16)};
}

// Whether attention has a kernel for these formats: head dims of layout.h; tiered keys; uniform values of 2 or 4 bits
// by token, in groups that are whole multiples of 32 channels.
bool tiered_supported(const PageFormat& keys, const PageFormat& values);

// One kv head. keys, values: its canonical parts.
TieredBlock tiered_block(const PageFormat& keys, const PageFormat& values, const uint8_t* key_part);
void pack_tiered(const PageFormat& keys, const PageFormat& values, const uint8_t* key_part, const uint8_t* value_part,
                 uint8_t* block);
// Back: key_part must have room for the canonical part, whose bytes are returned; value_part for values.page_bytes.
size_t unpack_tiered(const PageFormat& keys, const PageFormat& values, const TieredBlock& layout, const uint8_t* block,
                     uint8_t* key_part, uint8_t* value_part);

}  // namespace kvasir::cuda
