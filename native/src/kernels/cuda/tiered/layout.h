// Pages of tiered keys and uniform values in device memory, for attention: an exact re-ordering of the canonical parts.
//
//   page         TieredPlace[kv_heads], padded with zeros to a multiple of 128; then head blocks
//   head block   key bounds, lo of keys, bands, 16-bit tier, spans of values; padded to 32
//
// Attention multiplies bytes (layout/fragments.h). Tiers of 4 and 2 bits become columns of 2-bit codes: a column for
// each channel of 2 bits, two for each channel of 4, code = low + 4 * high. Columns come in pairs, first those of a
// channel of 4 bits, then two channels of 2 bits each; eight pairs are a band, the k of half a step of mma.m16n8k32.
// The last band has as many pairs as are left, an even number.
//
//   key bounds    uint8 [head_dim]: half_range_bound of each channel's greatest range, 0 for those of 16 bits, by
//                 which attention scales products: by the greatest one that a query can give
//   lo of keys    float16 [head_dim / 32][groups of tokens][32], 0 for channels of 16 bits: rows of an operand
//   band          uint16 column[pairs][2]: stored_row of its kind and channel;
//                 float16 range[pairs][groups of tokens][2]; codes, 16 bytes for each lane that has a pair
//   16-bit tier   for each 8 channels, or what is left of them: uint16 query_halves[8]; float16 elements of pairs of
//                 channels, as a lane of an operand has them; those of a channel that is left over likewise, tokens t
//                 and t + 64 in the place of a pair
//   value span    up to 128 channels. For the groups that it has channels of: float32 rounding_bias of the largest
//                 range, all of them negative if a group has uneven_ranges; float16 range [group][8][16], that of token
//                 i + 8 j at [i][j]; lo in the order of an operand, whose rows are groups. Then for each 64 channels a
//                 part of layout/fragments.h, of 128 tokens
//
// Keys in groups of 64 tokens are stored as if in groups of 32, with equal parameters. Between any two of these things
// there are zeros up to a multiple of 16.
#pragma once

#include "codecs/page_format.h"
#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

// What a column of codes is multiplied with: attention has a table of queries for each kind.
enum ColumnKind : int {
  kLowBits,   // of a channel of 4 bits
  kHighBits,  // its other column
  kTwoBits,   // the only column of a channel of 2 bits
  kPadding,   // of no channel: has no table, and any row will do, since its range is 0
};
constexpr int kColumnKinds = 3;     // with tables
constexpr int kQueryRowBytes = 16;  // of a table: four heads
KVASIR_HOST_DEVICE constexpr int query_row(int head_dim, int kind, int channel) { return kind * head_dim + channel; }
// A row as bands name it, in bytes from the first, and its channel.
KVASIR_HOST_DEVICE constexpr int stored_row(int head_dim, int kind, int channel) {
  return query_row(head_dim, kind, channel) * kQueryRowBytes;
}
KVASIR_HOST_DEVICE constexpr int channel_of_row(int head_dim, int stored) { return stored / kQueryRowBytes % head_dim; }
// Where attention has a channel's queries as pairs of float16, in bytes from those of the first head; and back.
KVASIR_HOST_DEVICE constexpr int query_halves(int channel) { return channel / 32 * 512 + channel % 32 * 2; }
KVASIR_HOST_DEVICE constexpr int channel_of_halves(int halves) { return halves / 512 * 32 + halves % 512 / 2; }

constexpr int kBandPairs = 8;
constexpr int kTokenSpans = 4;  // of 32 tokens
constexpr int kPairCodeBytes = 2 * kPageTokens / 4;
constexpr int kWideBlock = 8;  // channels of the 16-bit tier that stand together
constexpr int kWideHeadBytes = 2 * kWideBlock;
static_assert(kWideHeadBytes == 16);
constexpr int kWideChannelBytes = 2 * kPageTokens;
constexpr int kBlockAlignment = 32;

KVASIR_HOST_DEVICE constexpr int padded16(int bytes) { return (bytes + 15) & ~15; }

// The upper byte of a float16 that is at least half of `range`, bits of one that is not negative. Half of it, because
// the bound of the largest ranges would be infinite.
KVASIR_HOST_DEVICE constexpr uint8_t half_range_bound(int range) {
  const int half = range < 0x800 ? (range + 1) / 2 : range - 0x400;  // the first 0x800 are equidistant
  return static_cast<uint8_t>((half + 255) / 256);
}

// Bits of a float32: 1.5 * 2^23 units, where 65504 units are the first 2^n * 65504 that no product of a weight, 1 at
// most, and a range of `greatest` or less exceeds. Such a product plus this is a whole number of units in the low 16
// bits.
KVASIR_HOST_DEVICE constexpr uint32_t rounding_bias(int greatest) {
  int exponent = (greatest >> 10) - 15;
  if (exponent < -14) {  // a subnormal number, or 0
    exponent = -24;
    for (int rest = greatest; rest > 1; rest >>= 1) ++exponent;
  }
  return static_cast<uint32_t>(127 + 23 - 15 + exponent) << 23 | 0x400000u;
}
// Whether ranges of a group differ by more than about 8 times. The greatest weights may then be those of small ranges,
// whose products would be few units.
KVASIR_HOST_DEVICE constexpr bool uneven_ranges(int greatest, int least) { return greatest - least > 3 << 10; }

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

KVASIR_HOST_DEVICE constexpr int value_parameter_bytes(int groups) {
  return padded16(4 * groups) + groups * 4 * kPageTokens;
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
  // Key bounds and lo.
  KVASIR_HOST_DEVICE constexpr int header_bytes() const { return head_dim + 2 * head_dim * key_groups(); }
  // Of a band: what comes before the codes, and all of it.
  KVASIR_HOST_DEVICE constexpr int band_column_bytes(int pairs) const { return padded16(4 * pairs); }
  KVASIR_HOST_DEVICE constexpr int band_head_bytes(int pairs) const {
    return band_column_bytes(pairs) + padded16(4 * key_groups() * pairs);
  }
  KVASIR_HOST_DEVICE constexpr int band_bytes(int pairs) const {
    return band_head_bytes(pairs) + pairs * kPairCodeBytes;
  }
  // Of as many bands as these pairs take.
  KVASIR_HOST_DEVICE constexpr int bands_bytes(int pairs) const {
    const auto count = static_cast<unsigned>(pairs);  // not negative: shifts, not divisions
    return static_cast<int>(count / kBandPairs) * band_bytes(kBandPairs) +
           band_bytes(static_cast<int>(count % kBandPairs));
  }
  KVASIR_HOST_DEVICE constexpr int value_spans() const { return (head_dim + kValueSpan - 1) / kValueSpan; }
  KVASIR_HOST_DEVICE constexpr int span_channels(int span) const {
    return head_dim - span * kValueSpan < kValueSpan ? head_dim - span * kValueSpan : kValueSpan;
  }
  // The group of a channel, counted from the first of its span; groups of a span.
  KVASIR_HOST_DEVICE constexpr int group_of(int channel) const {
    return channel / value_group - channel / kValueSpan * kValueSpan / value_group;
  }
  KVASIR_HOST_DEVICE constexpr int span_groups(int span) const {
    return group_of(span * kValueSpan + span_channels(span) - 1) + 1;
  }
  KVASIR_HOST_DEVICE constexpr int span_parameter_bytes(int span) const {
    return value_parameter_bytes(span_groups(span));
  }
  KVASIR_HOST_DEVICE constexpr int span_code_bytes(int span) const {
    return kPageTokens * span_channels(span) / 8 * value_bits;
  }
  KVASIR_HOST_DEVICE constexpr int span_bytes(int span) const {
    return span_parameter_bytes(span) + span_code_bytes(span);
  }
  // Values of channels 64 v .. 64 v + 63, or as many as there are.
  KVASIR_HOST_DEVICE constexpr PartLayout value_part(int v) const {
    return {value_bits, kPageTokens, head_dim - 64 * v < 64 ? head_dim - 64 * v : 64};
  }
};
KVASIR_HOST_DEVICE constexpr int wide_bytes(int channels) {
  return padded16(2 * channels) + channels * kWideChannelBytes;
}

struct TieredColumn {
  int place;  // of its channel in channel[] of docs/format.md; 0 for padding
  ColumnKind kind;
};

// Offsets are from the beginning of the block.
struct TieredBlock {
  TieredFormat format;
  int n16, n4;

  KVASIR_HOST_DEVICE constexpr int n2() const { return format.head_dim - n16 - n4; }
  // Pairs of columns, with one that has no channel where that makes their number even.
  KVASIR_HOST_DEVICE constexpr int pairs() const { return (n4 + ((n2() + 1) >> 1) + 1) & ~1; }
  KVASIR_HOST_DEVICE constexpr int bands() const { return (pairs() + kBandPairs - 1) / kBandPairs; }
  KVASIR_HOST_DEVICE constexpr int band_pairs(int band) const {
    return pairs() - band * kBandPairs < kBandPairs ? pairs() - band * kBandPairs : kBandPairs;
  }
  KVASIR_HOST_DEVICE constexpr int band_offset(int band) const {
    return format.header_bytes() + band * format.band_bytes(kBandPairs);
  }
  // Column `which`, 0 or 1, of a pair.
  KVASIR_HOST_DEVICE constexpr TieredColumn column(int pair, int which) const {
    if (pair < n4) return {n16 + pair, which == 0 ? kLowBits : kHighBits};
    const int i = 2 * (pair - n4) + which;
    if (i < n2()) return {n16 + n4 + i, kTwoBits};
    return {0, kPadding};
  }
  KVASIR_HOST_DEVICE constexpr int column_byte(int pair, int which) const {
    return band_offset(pair / kBandPairs) + pair % kBandPairs * 4 + 2 * which;
  }
  KVASIR_HOST_DEVICE constexpr int range_byte(int pair, int which, int group) const {
    const int band = pair / kBandPairs;
    return band_offset(band) + format.band_column_bytes(band_pairs(band)) +
           (pair % kBandPairs * format.key_groups() + group) * 4 + 2 * which;
  }
  KVASIR_HOST_DEVICE constexpr int codes_offset(int band) const {
    return band_offset(band) + format.band_head_bytes(band_pairs(band));
  }
  // The four codes of a byte are of four tiles of 16 tokens.
  KVASIR_HOST_DEVICE constexpr Place code_place(int pair, int which, int token) const {
    const int band = pair / kBandPairs, p = pair % kBandPairs;
    const int lane = token % 8 * (band_pairs(band) / 2) + p / 2, word = token / 64 * 2 + token % 16 / 8;
    return {codes_offset(band) + 16 * lane + 4 * word + 2 * (p % 2) + which, 2 * (token / 16 % 4)};
  }
  KVASIR_HOST_DEVICE constexpr int lo_byte(int channel, int group) const {
    return format.head_dim + (channel / 32 * format.key_groups() + group) * 64 + channel % 32 * 2;
  }

  KVASIR_HOST_DEVICE constexpr int wide_offset() const { return format.header_bytes() + format.bands_bytes(pairs()); }
  // Of channel i of the 16-bit tier.
  KVASIR_HOST_DEVICE constexpr int wide_block_offset(int i) const {
    return wide_offset() + wide_bytes(i / kWideBlock * kWideBlock);
  }
  KVASIR_HOST_DEVICE constexpr int wide_row_byte(int i) const { return wide_block_offset(i) + i % kWideBlock * 2; }
  KVASIR_HOST_DEVICE constexpr int wide_element_byte(int i, int token) const {
    const int left = n16 - i / kWideBlock * kWideBlock, pairs = left < kWideBlock ? left / 2 : kWideBlock / 2;
    const int pair = i % kWideBlock / 2, elements = wide_block_offset(i) + kWideHeadBytes;
    const int word = token % 32 / 8 * 4;
    if (pair < pairs) return elements + 16 * ((token / 32 * 8 + token % 8) * pairs + pair) + word + i % 2 * 2;
    return elements + pairs * 2 * kWideChannelBytes + 16 * (token % 64 / 32 * 8 + token % 8) + word + token / 64 * 2;
  }

  KVASIR_HOST_DEVICE constexpr int span_offset(int span) const {
    return wide_offset() + wide_bytes(n16) + (span == 0 ? 0 : span * format.span_bytes(0));
  }
  // Of a group of the span.
  KVASIR_HOST_DEVICE constexpr int value_bias_byte(int span, int group) const { return span_offset(span) + 4 * group; }
  KVASIR_HOST_DEVICE constexpr int value_range_byte(int span, int group, int token) const {
    return span_offset(span) + padded16(4 * format.span_groups(span)) + group * 2 * kPageTokens + token % 8 * 32 +
           token / 8 * 2;
  }
  KVASIR_HOST_DEVICE constexpr int value_lo_byte(int span, int group, int token) const {
    const int groups = format.span_groups(span);
    return span_offset(span) + padded16(4 * groups) + groups * 2 * kPageTokens + (token / 32 * groups + group) * 64 +
           token % 8 / 2 * 16 + token % 32 / 8 * 4 + token % 2 * 2;
  }
  KVASIR_HOST_DEVICE constexpr int value_codes_offset(int part) const {
    const int span = 64 * part / kValueSpan;
    return span_offset(span) + format.span_parameter_bytes(span) +
           64 * part % kValueSpan / 8 * kPageTokens * format.value_bits;
  }
  KVASIR_HOST_DEVICE constexpr Place value_code_place(int channel, int token) const {
    const Place place = format.value_part(channel / 64).code_place(0, token, channel % 64);
    return {value_codes_offset(channel / 64) + place.byte, place.bit};
  }
  // Where the values end, and the block.
  KVASIR_HOST_DEVICE constexpr int end() const {
    return span_offset(format.value_spans() - 1) + format.span_bytes(format.value_spans() - 1);
  }
  KVASIR_HOST_DEVICE constexpr int bytes() const {
    return (end() + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  }
};

KVASIR_HOST_DEVICE constexpr TieredBlock tiered_block(const TieredFormat& format, int n16, int n4) {
  return {format, n16, n4};
}
KVASIR_HOST_DEVICE constexpr TieredBlock tiered_block(const TieredFormat& format, const TieredPlace& place) {
  return {format, place.n16, place.n4};
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

static_assert(tiered_block({128, 2, 32, 32}, 3, 20).bytes() ==
                  128 + 1024 + 9 * 672 + 176 + 16 + 3 * 256 + 16 + 2048 + 4096 + 16,
              "3.5 bits per element");

}  // namespace kvasir::cuda
