#include "reference/weights.h"

#include <cstring>

#include "reference/half.h"

namespace reference {
namespace {

double half_at(const uint8_t* at) { return half_value(static_cast<uint16_t>(at[0] | at[1] << 8)); }

// Bits [first, first + count) of a string of bytes, lowest first.
int bits(const uint8_t* from, int first, int count) {
  int value = 0;
  for (int b = 0; b < count; ++b) value |= (from[(first + b) / 8] >> (first + b) % 8 & 1) << b;
  return value;
}

Weight q4_0(const uint8_t* block, int i) {
  return {half_at(block) * (bits(block + 2, i % 16 * 8 + i / 16 * 4, 4) - 8)};
}

Weight q4_1(const uint8_t* block, int i) {
  return {half_at(block) * bits(block + 4, i % 16 * 8 + i / 16 * 4, 4), -half_at(block + 2)};
}

int five_bits(const uint8_t* from, int i) { return bits(from + 4, i % 16 * 8 + i / 16 * 4, 4) + 16 * bits(from, i, 1); }

Weight q5_0(const uint8_t* block, int i) { return {half_at(block) * (five_bits(block + 2, i) - 16)}; }

Weight q5_1(const uint8_t* block, int i) { return {half_at(block) * five_bits(block + 4, i), -half_at(block + 2)}; }

double uneven(int nibble) {
  const double positive[] = {1, 13, 25, 38, 53, 69, 89, 113}, negative[] = {10, 22, 35, 49, 65, 83, 104, 127};
  return nibble < 8 ? -negative[7 - nibble] : positive[nibble - 8];
}

Weight iq4_nl(const uint8_t* block, int i) {
  return {half_at(block) * uneven(bits(block + 2, i % 16 * 8 + i / 16 * 4, 4))};
}

Weight iq4_xs(const uint8_t* block, int i) {
  const int part = i / 32, scale = bits(block + 4, part * 4, 4) + 16 * bits(block + 2, part * 2, 2) - 32;
  return {half_at(block) * scale * uneven(bits(block + 8 + part * 16, i % 16 * 8 + i % 32 / 16 * 4, 4))};
}

Weight q8_0(const uint8_t* block, int i) { return {half_at(block) * static_cast<int8_t>(block[2 + i])}; }

// The 2 low bits of weight i in Q2_K and Q3_K: byte i % 32 of the half, field i / 32 of the half.
int two_bits(const uint8_t* from, int i) { return bits(from + i / 128 * 32, i % 32 * 8 + i % 128 / 32 * 2, 2); }

Weight q2_k(const uint8_t* block, int i) {
  const int scale = bits(block, i / 16 * 8, 4), minimum = bits(block, i / 16 * 8 + 4, 4);
  return {half_at(block + 80) * scale * two_bits(block + 16, i), half_at(block + 82) * minimum};
}

Weight q3_k(const uint8_t* block, int i) {
  const int group = i / 16;
  const int low = bits(block + 96, group % 8 * 8 + group / 8 * 4, 4);
  const int high = bits(block + 104, group % 4 * 8 + group / 4 * 2, 2);
  const int code = two_bits(block + 32, i) - (bits(block, i % 32 * 8 + i / 32, 1) ? 0 : 4);
  return {half_at(block + 108) * (low + 16 * high - 32) * code};
}

// Q4_K and Q5_K: parts 0..3 have 6 bits in bytes of their own, whose top bits hold the rest of parts 4..7.
int part_number(const uint8_t* packed, int part, bool minimum) {
  if (part < 4) return bits(packed, (part + (minimum ? 4 : 0)) * 8, 6);
  return bits(packed + 8, (part - 4) * 8 + (minimum ? 4 : 0), 4) +
         16 * bits(packed, (part - 4 + (minimum ? 4 : 0)) * 8 + 6, 2);
}

Weight parted(const uint8_t* block, int i, int code) {
  return {half_at(block) * part_number(block + 4, i / 32, false) * code,
          half_at(block + 2) * part_number(block + 4, i / 32, true)};
}

int nibble(const uint8_t* from, int i) { return bits(from, (i / 64 * 32 + i % 32) * 8 + i % 64 / 32 * 4, 4); }

Weight q4_k(const uint8_t* block, int i) { return parted(block, i, nibble(block + 16, i)); }

Weight q5_k(const uint8_t* block, int i) {
  return parted(block, i, nibble(block + 48, i) + 16 * bits(block + 16, i % 32 * 8 + i / 32, 1));
}

Weight q6_k(const uint8_t* block, int i) {
  const int half = i / 128, in_half = i % 128;
  const int low = bits(block + half * 64, in_half % 64 * 8 + in_half / 64 * 4, 4);
  const int high = bits(block + 128 + half * 32, in_half % 32 * 8 + in_half / 32 * 2, 2);
  return {half_at(block + 208) * static_cast<int8_t>(block[192 + i / 16]) * (low + 16 * high - 32)};
}

// clang-format off
const uint64_t points[256] = {
    0x0808080808080808, 0x080808080808082b, 0x0808080808081919, 0x0808080808082b08, 0x0808080808082b2b,
    0x0808080808190819, 0x0808080808191908, 0x08080808082b0808, 0x08080808082b082b, 0x08080808082b2b08,
    0x08080808082b2b2b, 0x0808080819080819, 0x0808080819081908, 0x0808080819190808, 0x0808080819192b08,
    0x08080808192b0819, 0x08080808192b1908, 0x080808082b080808, 0x080808082b08082b, 0x080808082b082b2b,
    0x080808082b2b082b, 0x0808081908080819, 0x0808081908081908, 0x0808081908190808, 0x0808081908191919,
    0x0808081919080808, 0x080808192b081908, 0x080808192b192b08, 0x0808082b08080808, 0x0808082b0808082b,
    0x0808082b082b082b, 0x0808082b2b08082b, 0x0808190808080819, 0x0808190808081908, 0x0808190808190808,
    0x08081908082b0819, 0x08081908082b1908, 0x0808190819080808, 0x080819081908082b, 0x0808190819082b08,
    0x08081908192b0808, 0x080819082b080819, 0x080819082b081908, 0x080819082b190808, 0x080819082b2b1908,
    0x0808191908080808, 0x080819190808082b, 0x0808191908082b08, 0x08081919082b0808, 0x080819191908192b,
    0x08081919192b2b19, 0x080819192b080808, 0x080819192b190819, 0x0808192b08082b19, 0x0808192b08190808,
    0x0808192b19080808, 0x0808192b2b081908, 0x0808192b2b2b1908, 0x08082b0808080808, 0x08082b0808081919,
    0x08082b0808082b08, 0x08082b0808191908, 0x08082b08082b2b08, 0x08082b0819080819, 0x08082b0819081908,
    0x08082b0819190808, 0x08082b081919082b, 0x08082b082b082b08, 0x08082b1908081908, 0x08082b1919080808,
    0x08082b2b0808082b, 0x08082b2b08191908, 0x0819080808080819, 0x0819080808081908, 0x0819080808190808,
    0x08190808082b0819, 0x0819080819080808, 0x08190808192b0808, 0x081908082b081908, 0x081908082b190808,
    0x081908082b191919, 0x0819081908080808, 0x0819081908082b08, 0x08190819082b0808, 0x0819081919190808,
    0x0819081919192b2b, 0x081908192b080808, 0x0819082b082b1908, 0x0819082b19081919, 0x0819190808080808,
    0x0819190808082b08, 0x08191908082b0808, 0x08191908082b1919, 0x0819190819082b19, 0x081919082b080808,
    0x0819191908192b08, 0x08191919192b082b, 0x0819192b08080808, 0x0819192b0819192b, 0x08192b0808080819,
    0x08192b0808081908, 0x08192b0808190808, 0x08192b0819080808, 0x08192b082b080819, 0x08192b1908080808,
    0x08192b1908081919, 0x08192b192b2b0808, 0x08192b2b19190819, 0x082b080808080808, 0x082b08080808082b,
    0x082b080808082b2b, 0x082b080819081908, 0x082b0808192b0819, 0x082b08082b080808, 0x082b08082b08082b,
    0x082b0819082b2b19, 0x082b081919082b08, 0x082b082b08080808, 0x082b082b0808082b, 0x082b190808080819,
    0x082b190808081908, 0x082b190808190808, 0x082b190819080808, 0x082b19081919192b, 0x082b191908080808,
    0x082b191919080819, 0x082b1919192b1908, 0x082b192b2b190808, 0x082b2b0808082b08, 0x082b2b08082b0808,
    0x082b2b082b191908, 0x082b2b2b19081908, 0x1908080808080819, 0x1908080808081908, 0x1908080808190808,
    0x1908080808192b08, 0x19080808082b0819, 0x19080808082b1908, 0x1908080819080808, 0x1908080819082b08,
    0x190808081919192b, 0x19080808192b0808, 0x190808082b080819, 0x190808082b081908, 0x190808082b190808,
    0x1908081908080808, 0x19080819082b0808, 0x19080819192b0819, 0x190808192b080808, 0x190808192b081919,
    0x1908082b08080819, 0x1908082b08190808, 0x1908082b19082b08, 0x1908082b1919192b, 0x1908082b192b2b08,
    0x1908190808080808, 0x1908190808082b08, 0x19081908082b0808, 0x190819082b080808, 0x190819082b192b19,
    0x190819190819082b, 0x19081919082b1908, 0x1908192b08080808, 0x19082b0808080819, 0x19082b0808081908,
    0x19082b0808190808, 0x19082b0819080808, 0x19082b0819081919, 0x19082b1908080808, 0x19082b1919192b08,
    0x19082b19192b0819, 0x19082b192b08082b, 0x19082b2b19081919, 0x19082b2b2b190808, 0x1919080808080808,
    0x1919080808082b08, 0x1919080808190819, 0x1919080808192b19, 0x19190808082b0808, 0x191908082b080808,
    0x191908082b082b08, 0x1919081908081908, 0x191908191908082b, 0x191908192b2b1908, 0x1919082b2b190819,
    0x191919082b190808, 0x191919082b19082b, 0x1919191908082b2b, 0x1919192b08080819, 0x1919192b19191908,
    0x19192b0808080808, 0x19192b0808190819, 0x19192b0808192b19, 0x19192b08192b1908, 0x19192b1919080808,
    0x19192b2b08082b08, 0x192b080808081908, 0x192b080808190808, 0x192b080819080808, 0x192b0808192b2b08,
    0x192b081908080808, 0x192b081919191919, 0x192b082b08192b08, 0x192b082b192b0808, 0x192b190808080808,
    0x192b190808081919, 0x192b191908190808, 0x192b19190819082b, 0x192b19192b081908, 0x192b2b081908082b,
    0x2b08080808080808, 0x2b0808080808082b, 0x2b08080808082b2b, 0x2b08080819080819, 0x2b0808082b08082b,
    0x2b08081908081908, 0x2b08081908192b08, 0x2b08081919080808, 0x2b08082b08190819, 0x2b08190808080819,
    0x2b08190808081908, 0x2b08190808190808, 0x2b08190808191919, 0x2b08190819080808, 0x2b081908192b0808,
    0x2b08191908080808, 0x2b0819191908192b, 0x2b0819192b191908, 0x2b08192b08082b19, 0x2b08192b19080808,
    0x2b08192b192b0808, 0x2b082b080808082b, 0x2b082b1908081908, 0x2b082b2b08190819, 0x2b19080808081908,
    0x2b19080808190808, 0x2b190808082b1908, 0x2b19080819080808, 0x2b1908082b2b0819, 0x2b1908190819192b,
    0x2b1908192b080808, 0x2b19082b19081919, 0x2b19190808080808, 0x2b191908082b082b, 0x2b19190819081908,
    0x2b19191919190819, 0x2b192b082b080819, 0x2b192b19082b0808, 0x2b2b08080808082b, 0x2b2b080819190808,
    0x2b2b08082b081919, 0x2b2b081908082b19, 0x2b2b082b08080808, 0x2b2b190808192b08, 0x2b2b2b0819190808,
    0x2b2b2b1908081908,
};
// clang-format on

Weight iq2_xxs(const uint8_t* block, int i) {
  const uint8_t* part = block + 2 + i / 32 * 8;
  const int eight = i % 32 / 8;
  const double magnitude = static_cast<double>(points[part[eight]] >> i % 8 * 8 & 255);
  bool negative = bits(part + 4, 7 * eight + i % 8, 1) != 0;
  if (i % 8 == 7) negative = __builtin_popcount(bits(part + 4, 7 * eight, 7)) % 2 != 0;
  return {half_at(block) * (2 * bits(part + 4, 28, 4) + 1) / 8 * (negative ? -magnitude : magnitude)};
}

struct Type {
  int number, weights, bytes;
  Weight (*weight)(const uint8_t* block, int i);
};

const Type types[] = {
    {0, 1, 4,
     [](const uint8_t* block, int) {
       float value;
       memcpy(&value, block, sizeof value);
       return Weight{static_cast<double>(value)};
     }},
    {1, 1, 2, [](const uint8_t* block, int) { return Weight{half_at(block)}; }},
    {30, 1, 2,
     [](const uint8_t* block, int) { return Weight{bfloat_value(static_cast<uint16_t>(block[0] | block[1] << 8))}; }},
    {2, 32, 18, q4_0},
    {3, 32, 20, q4_1},
    {6, 32, 22, q5_0},
    {7, 32, 24, q5_1},
    {8, 32, 34, q8_0},
    {10, 256, 84, q2_k},
    {11, 256, 110, q3_k},
    {12, 256, 144, q4_k},
    {13, 256, 176, q5_k},
    {14, 256, 210, q6_k},
    {16, 256, 66, iq2_xxs},
    {20, 32, 18, iq4_nl},
    {23, 256, 136, iq4_xs},
};

const Type* find(int number) {
  for (const Type& type : types) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

}  // namespace

int block_bytes(int type) { return find(type) ? find(type)->bytes : 0; }
int block_weights(int type) { return find(type) ? find(type)->weights : 0; }

Weight weight_at(int type, const uint8_t* row, int64_t index) {
  const Type& known = *find(type);
  return known.weight(row + index / known.weights * known.bytes, static_cast<int>(index % known.weights));
}

}  // namespace reference
