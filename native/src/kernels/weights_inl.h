// Widening of weights, the same source for every level.
//
// All block types are, for each 16 neighbouring weights, scale * code - minimum with an 8-bit code: a block becomes
// codes first (Codes), whatever bits it is made of, and those become floats in one loop.
#pragma once

#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "base/half.h"
#include "kernels/weights.h"

namespace kvasir {
namespace {

constexpr int kCodeGroup = 16;   // weights that share a scale
constexpr int kCodeBlock = 256;  // weights of the longest block

struct Codes {
  int8_t codes[kCodeBlock];
  float scales[kCodeBlock / kCodeGroup];
  float minimums[kCodeBlock / kCodeGroup];  // unset where the type has none
};

inline float load_half_at(const uint8_t* from) {
#if defined(__aarch64__)
  __fp16 half;
  memcpy(&half, from, sizeof half);
  return half;
#else
  uint16_t half;
  memcpy(&half, from, sizeof half);
#if defined(__AVX2__)
  return _cvtsh_ss(half);
#else
  return half_to_float(half);
#endif
#endif
}

inline uint64_t load_word(const uint8_t* from) {
  uint64_t word;
  memcpy(&word, from, sizeof word);
  return word;
}

// Sixteen bytes and two words as what compilers have for every level. Loops over bytes stay loops: a byte may be part
// of anything, what it is made of included.
using Bytes = uint8_t __attribute__((vector_size(16)));
using SignedBytes = int8_t __attribute__((vector_size(16)));
using Words = uint64_t __attribute__((vector_size(16)));

inline Bytes load_bytes(const uint8_t* from) {
  Bytes bytes;
  memcpy(&bytes, from, sizeof bytes);
  return bytes;
}

// The bytes of large blocks come by 32. By reference: by value they are passed as the level's registers allow.
using ManyBytes = uint8_t __attribute__((vector_size(32)));

inline void load_many(const uint8_t* from, ManyBytes* bytes) { memcpy(bytes, from, sizeof *bytes); }

template <class Vector>
inline void store_codes(const Vector& vector, int8_t* codes) {
  memcpy(codes, &vector, sizeof vector);
}

// The table's bytes of indices below 16.
inline Bytes lookup(Bytes table, Bytes indices) {
#if defined(__AVX2__)
  return (Bytes)_mm_shuffle_epi8((__m128i)table, (__m128i)indices);
#elif defined(__aarch64__)
  return (Bytes)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)indices);
#else
  uint8_t from[16], at[16];
  memcpy(from, &table, sizeof from);
  memcpy(at, &indices, sizeof at);
  for (uint8_t& byte : at) byte = from[byte];
  return load_bytes(at);
#endif
}

// 32 weights as nibbles, those of the first half in the low bits; kZero is zero.
template <uint8_t kZero>
inline void unpack_nibbles(const uint8_t* from, int8_t* codes) {
  const Bytes packed = load_bytes(from);
  store_codes((packed & 15) - kZero, codes);
  store_codes((packed >> 4) - kZero, codes + 16);
}

// The same with a fifth bit each, of weight i in bit i of the four bytes before.
template <uint8_t kZero>
inline void unpack_five_bits(const uint8_t* from, int8_t* codes) {
  constexpr Bytes kFirst = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  constexpr Bytes kBits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const Bytes packed = load_bytes(from + 4), high = load_bytes(from);  // of which four bytes serve
  const Bytes first = (Bytes)((lookup(high, kFirst) & kBits) == kBits) & 16;
  const Bytes second = (Bytes)((lookup(high, kFirst + 2) & kBits) == kBits) & 16;
  store_codes(((packed & 15) | first) - kZero, codes);
  store_codes(((packed >> 4) | second) - kZero, codes + 16);
}

// The sixteen values that nibbles stand for in IQ4_NL and IQ4_XS: denser around 0; part of the format.
inline void unpack_uneven_nibbles(const uint8_t* from, int8_t* codes) {
  constexpr SignedBytes kUneven = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  const Bytes packed = load_bytes(from);
  store_codes(lookup((Bytes)kUneven, packed & 15), codes);
  store_codes(lookup((Bytes)kUneven, packed >> 4), codes + 16);
}

// 32 weights as signed bytes.
inline void unpack_bytes(const uint8_t* from, int8_t* codes) { memcpy(codes, from, 32); }

// A scale; scales of 6 bits for 32 weights, first two high bits each, in two bytes, then four low ones, in four; uneven
// nibbles of 32 weights after 32. A scale of 32 is zero.
inline void unpack_iq4_xs(const uint8_t* block, Codes* out) {
  const float scale = load_half_at(block);
  for (int part = 0; part < 8; ++part) {
    const int high = (block[2 + part / 4] >> part % 4 * 2) & 3, low = (block[4 + part / 2] >> part % 2 * 4) & 15;
    out->scales[2 * part] = out->scales[2 * part + 1] = scale * static_cast<float>((low | high << 4) - 32);
    unpack_uneven_nibbles(block + 8 + part * 16, out->codes + part * 32);
  }
}

// 16 bytes of a scale (low) and a minimum (high), each of 4 bits; 64 bytes of 2-bit codes; the scales of both. Byte i
// of the 32 that serve 128 weights holds weights i, i + 32, i + 64 and i + 96.
inline void unpack_q2_k(const uint8_t* block, Codes* out) {
  const float scale = load_half_at(block + 80);
  const float minimum = load_half_at(block + 82);
  uint8_t packed[16];
  memcpy(packed, block, sizeof packed);
  for (int g = 0; g < 16; ++g) {
    out->scales[g] = scale * static_cast<float>(packed[g] & 15);
    out->minimums[g] = minimum * static_cast<float>(packed[g] >> 4);
  }
  for (int half = 0; half < 2; ++half) {
    ManyBytes from;
    load_many(block + 16 + half * 32, &from);
    int8_t* to = out->codes + half * 128;
    for (int part = 0; part < 4; ++part) store_codes((from >> 2 * part) & 3, to + part * 32);
  }
}

// 32 bytes of high bits (bit p of byte i: weight 32 p + i), 64 of low bits as in Q2_K, 12 of scales, a scale of those.
// A code is low + 4 * high - 4. Scale g has 4 low bits in nibble g of bytes 0..7, and 2 high ones in bytes 8..11; 32 is
// zero.
inline void unpack_q3_k(const uint8_t* block, Codes* out) {
  const uint8_t* packed = block + 96;
  const float scale = load_half_at(block + 108);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
    const int high = (packed[8 + g % 4] >> g / 4 * 2) & 3;
    out->scales[g] = scale * static_cast<float>((low | high << 4) - 32);
  }
  ManyBytes high;
  load_many(block, &high);
  for (int half = 0; half < 2; ++half) {
    ManyBytes from;
    load_many(block + 32 + half * 32, &from);
    int8_t* to = out->codes + half * 128;
    for (int part = 0; part < 4; ++part) {
      store_codes(((from >> 2 * part) & 3) + ((high & 1) << 2) - 4, to + part * 32);
      high >>= 1;
    }
  }
}

// The scales and minimums of Q4_K and Q5_K: 6 bits each for 8 parts of 32 weights, in 12 bytes.
inline void unpack_six_bits(const uint8_t* block, Codes* out) {
  const float scale = load_half_at(block);
  const float minimum = load_half_at(block + 2);
  const uint8_t* packed = block + 4;
  for (int part = 0; part < 8; ++part) {
    int s, m;
    if (part < 4) {
      s = packed[part] & 63;
      m = packed[part + 4] & 63;
    } else {
      s = (packed[part + 4] & 15) | (packed[part - 4] >> 6 << 4);
      m = (packed[part + 4] >> 4) | (packed[part] >> 6 << 4);
    }
    out->scales[2 * part] = out->scales[2 * part + 1] = scale * static_cast<float>(s);
    out->minimums[2 * part] = out->minimums[2 * part + 1] = minimum * static_cast<float>(m);
  }
}

// Nibbles: 32 bytes hold 32 weights in their low and the next 32 in their high bits.
inline void unpack_q4_k(const uint8_t* block, Codes* out) {
  unpack_six_bits(block, out);
  for (int pair = 0; pair < 4; ++pair) {
    ManyBytes from;
    load_many(block + 16 + pair * 32, &from);
    store_codes(from & 15, out->codes + pair * 64);
    store_codes(from >> 4, out->codes + pair * 64 + 32);
  }
}

// The same with a fifth bit: bit p of byte i of 32 belongs to weight 32 p + i.
inline void unpack_q5_k(const uint8_t* block, Codes* out) {
  unpack_six_bits(block, out);
  ManyBytes high;
  load_many(block + 16, &high);
  for (int pair = 0; pair < 4; ++pair) {
    ManyBytes from;
    load_many(block + 48 + pair * 32, &from);
    store_codes((from & 15) | ((high & 1) << 4), out->codes + pair * 64);
    store_codes((from >> 4) | ((high & 2) << 3), out->codes + pair * 64 + 32);
    high >>= 2;
  }
}

// 128 bytes of low nibbles, 64 of two high bits, 16 signed scales, a scale of those; 32 is zero. Of each half of 128
// weights, nibble byte i holds weights i and i + 64, byte i + 32 holds i + 32 and i + 96; high byte i all four.
inline void unpack_q6_k(const uint8_t* block, Codes* out) {
  const float scale = load_half_at(block + 208);
  for (int g = 0; g < 16; ++g) out->scales[g] = scale * static_cast<float>(static_cast<int8_t>(block[192 + g]));
  for (int half = 0; half < 2; ++half) {
    ManyBytes near, far, high;
    load_many(block + half * 64, &near);
    load_many(block + half * 64 + 32, &far);
    load_many(block + 128 + half * 32, &high);
    int8_t* to = out->codes + half * 128;
    store_codes(((near & 15) | ((high & 3) << 4)) - 32, to);
    store_codes(((far & 15) | ((high & 12) << 2)) - 32, to + 32);
    store_codes(((near >> 4) | (high & 48)) - 32, to + 64);
    store_codes(((far >> 4) | (high >> 6 << 4)) - 32, to + 96);
  }
}

// The 256 points of IQ2_XXS: eight magnitudes of 2 bits each, 0, 1, 2 for 8, 25, 43; part of the format.
// clang-format off
constexpr uint16_t kPoints[256] = {
    0x0000, 0x0002, 0x0005, 0x0008, 0x000a, 0x0011, 0x0014, 0x0020, 0x0022, 0x0028, 0x002a, 0x0041, 0x0044, 0x0050, 0x0058, 0x0061,
    0x0064, 0x0080, 0x0082, 0x008a, 0x00a2, 0x0101, 0x0104, 0x0110, 0x0115, 0x0140, 0x0184, 0x0198, 0x0200, 0x0202, 0x0222, 0x0282,
    0x0401, 0x0404, 0x0410, 0x0421, 0x0424, 0x0440, 0x0442, 0x0448, 0x0460, 0x0481, 0x0484, 0x0490, 0x04a4, 0x0500, 0x0502, 0x0508,
    0x0520, 0x0546, 0x0569, 0x0580, 0x0591, 0x0609, 0x0610, 0x0640, 0x0684, 0x06a4, 0x0800, 0x0805, 0x0808, 0x0814, 0x0828, 0x0841,
    0x0844, 0x0850, 0x0852, 0x0888, 0x0904, 0x0940, 0x0a02, 0x0a14, 0x1001, 0x1004, 0x1010, 0x1021, 0x1040, 0x1060, 0x1084, 0x1090,
    0x1095, 0x1100, 0x1108, 0x1120, 0x1150, 0x115a, 0x1180, 0x1224, 0x1245, 0x1400, 0x1408, 0x1420, 0x1425, 0x1449, 0x1480, 0x1518,
    0x1562, 0x1600, 0x1616, 0x1801, 0x1804, 0x1810, 0x1840, 0x1881, 0x1900, 0x1905, 0x19a0, 0x1a51, 0x2000, 0x2002, 0x200a, 0x2044,
    0x2061, 0x2080, 0x2082, 0x2129, 0x2148, 0x2200, 0x2202, 0x2401, 0x2404, 0x2410, 0x2440, 0x2456, 0x2500, 0x2541, 0x2564, 0x2690,
    0x2808, 0x2820, 0x2894, 0x2a44, 0x4001, 0x4004, 0x4010, 0x4018, 0x4021, 0x4024, 0x4040, 0x4048, 0x4056, 0x4060, 0x4081, 0x4084,
    0x4090, 0x4100, 0x4120, 0x4161, 0x4180, 0x4185, 0x4201, 0x4210, 0x4248, 0x4256, 0x4268, 0x4400, 0x4408, 0x4420, 0x4480, 0x4499,
    0x4512, 0x4524, 0x4600, 0x4801, 0x4804, 0x4810, 0x4840, 0x4845, 0x4900, 0x4958, 0x4961, 0x4982, 0x4a45, 0x4a90, 0x5000, 0x5008,
    0x5011, 0x5019, 0x5020, 0x5080, 0x5088, 0x5104, 0x5142, 0x51a4, 0x5291, 0x5490, 0x5492, 0x550a, 0x5601, 0x5654, 0x5800, 0x5811,
    0x5819, 0x5864, 0x5940, 0x5a08, 0x6004, 0x6010, 0x6040, 0x6068, 0x6100, 0x6155, 0x6218, 0x6260, 0x6400, 0x6405, 0x6510, 0x6512,
    0x6584, 0x6842, 0x8000, 0x8002, 0x800a, 0x8041, 0x8082, 0x8104, 0x8118, 0x8140, 0x8211, 0x8401, 0x8404, 0x8410, 0x8415, 0x8440,
    0x8460, 0x8500, 0x8546, 0x8594, 0x8609, 0x8640, 0x8660, 0x8802, 0x8904, 0x8a11, 0x9004, 0x9010, 0x9024, 0x9040, 0x90a1, 0x9116,
    0x9180, 0x9245, 0x9400, 0x9422, 0x9444, 0x9551, 0x9881, 0x9920, 0xa002, 0xa050, 0xa085, 0xa109, 0xa200, 0xa418, 0xa850, 0xa904,
};
// clang-format on

struct PointTables {
  uint64_t magnitudes[256];  // eight bytes each
  uint64_t signs[128];       // 255 in the bytes of negative weights
  float scales[16];          // of 4 bits
};

constexpr PointTables make_point_tables() {
  PointTables tables = {};
  constexpr uint64_t kMagnitudes[] = {8, 25, 43};
  for (int p = 0; p < 256; ++p) {
    for (int i = 0; i < 8; ++i) tables.magnitudes[p] |= kMagnitudes[(kPoints[p] >> 2 * i) & 3] << 8 * i;
  }
  for (int s = 0; s < 128; ++s) {
    int odd = 0;
    for (int i = 0; i < 7; ++i) {
      if (s >> i & 1) tables.signs[s] |= uint64_t{255} << 8 * i, odd ^= 1;
    }
    if (odd) tables.signs[s] |= uint64_t{255} << 56;  // the number of negative weights is even
  }
  for (int s = 0; s < 16; ++s) tables.scales[s] = (static_cast<float>(s) + 0.5f) / 4;
  return tables;
}

// A scale, then 8 bytes for each 32 weights: four points, four times 7 signs (an eighth follows from parity), and 4
// bits that scale: (s + 1/2) / 4.
inline void unpack_iq2_xxs(const uint8_t* block, Codes* out) {
  static constexpr PointTables kTables = make_point_tables();
  const float scale = load_half_at(block);
  for (int part = 0; part < 8; ++part) {
    const uint64_t word = load_word(block + 2 + part * 8);
    const float part_scale = scale * kTables.scales[word >> 60];
    out->scales[2 * part] = out->scales[2 * part + 1] = part_scale;
    for (int i = 0; i < 4; i += 2) {
      const Words magnitudes = {kTables.magnitudes[(word >> 8 * i) & 255],
                                kTables.magnitudes[(word >> (8 * i + 8)) & 255]};
      const Words negative = {kTables.signs[(word >> (32 + 7 * i)) & 127], kTables.signs[(word >> (39 + 7 * i)) & 127]};
      store_codes((Bytes)(magnitudes ^ negative) - (Bytes)negative, out->codes + part * 32 + i * 8);  // -x is ~x + 1
    }
  }
}

// A type as templates see it: kElements weights in kBytes bytes, of which kGroup share a scale. unpack makes codes of
// `count` weights, at most kCodeBlock.
//
// Small blocks are a scale, a minimum where the type has them, and what kUnpack makes codes of.
template <WeightType kType, void (*kUnpack)(const uint8_t*, int8_t*), bool kHasMinimums = false>
struct SmallBlocks {
  static constexpr int kElements = find_layout(kType)->elements, kBytes = find_layout(kType)->bytes;
  static constexpr int kGroup = 32;
  static constexpr bool kMinimums = kHasMinimums;
  static void unpack(const uint8_t* from, int count, Codes* out) {
    for (int at = 0; at < count; at += kElements, from += kBytes) {
      const int group = at / kCodeGroup;
      out->scales[group] = out->scales[group + 1] = load_half_at(from);
      if constexpr (kMinimums) {  // files have what is added
        out->minimums[group] = out->minimums[group + 1] = -load_half_at(from + 2);
      }
      kUnpack(from + (kMinimums ? 4 : 2), out->codes + at);
    }
  }
};

template <WeightType kType, void (*kUnpack)(const uint8_t*, Codes*), int kScaled, bool kHasMinimums>
struct LargeBlocks {
  static constexpr int kElements = find_layout(kType)->elements, kBytes = find_layout(kType)->bytes;
  static constexpr int kGroup = kScaled;
  static constexpr bool kMinimums = kHasMinimums;
  static void unpack(const uint8_t* from, int, Codes* out) { kUnpack(from, out); }
};

using BlocksQ4_0 = SmallBlocks<WeightType::kQ4_0, unpack_nibbles<8>>;
using BlocksQ4_1 = SmallBlocks<WeightType::kQ4_1, unpack_nibbles<0>, true>;
using BlocksQ5_0 = SmallBlocks<WeightType::kQ5_0, unpack_five_bits<16>>;
using BlocksQ5_1 = SmallBlocks<WeightType::kQ5_1, unpack_five_bits<0>, true>;
using BlocksQ8_0 = SmallBlocks<WeightType::kQ8_0, unpack_bytes>;
using BlocksQ2_K = LargeBlocks<WeightType::kQ2_K, unpack_q2_k, 16, true>;
using BlocksQ3_K = LargeBlocks<WeightType::kQ3_K, unpack_q3_k, 16, false>;
using BlocksQ4_K = LargeBlocks<WeightType::kQ4_K, unpack_q4_k, 32, true>;
using BlocksQ5_K = LargeBlocks<WeightType::kQ5_K, unpack_q5_k, 32, true>;
using BlocksQ6_K = LargeBlocks<WeightType::kQ6_K, unpack_q6_k, 16, false>;
using BlocksIQ2_XXS = LargeBlocks<WeightType::kIQ2_XXS, unpack_iq2_xxs, 32, false>;
using BlocksIQ4_NL = SmallBlocks<WeightType::kIQ4_NL, unpack_uneven_nibbles>;
using BlocksIQ4_XS = LargeBlocks<WeightType::kIQ4_XS, unpack_iq4_xs, 32, false>;

// Calls work(Blocks...()) for the type's.
template <class Work>
inline void with_blocks(WeightType type, const Work& work) {
  switch (type) {
    case WeightType::kQ4_0:
      return work(BlocksQ4_0());
    case WeightType::kQ4_1:
      return work(BlocksQ4_1());
    case WeightType::kQ5_0:
      return work(BlocksQ5_0());
    case WeightType::kQ5_1:
      return work(BlocksQ5_1());
    case WeightType::kQ8_0:
      return work(BlocksQ8_0());
    case WeightType::kQ2_K:
      return work(BlocksQ2_K());
    case WeightType::kQ3_K:
      return work(BlocksQ3_K());
    case WeightType::kQ4_K:
      return work(BlocksQ4_K());
    case WeightType::kQ5_K:
      return work(BlocksQ5_K());
    case WeightType::kQ6_K:
      return work(BlocksQ6_K());
    case WeightType::kIQ2_XXS:
      return work(BlocksIQ2_XXS());
    case WeightType::kIQ4_NL:
      return work(BlocksIQ4_NL());
    case WeightType::kIQ4_XS:
      return work(BlocksIQ4_XS());
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      return;
  }
}

// Group::widen<kMinimum>(codes, scale, minimum, out) makes floats of kCodeGroup codes: a level's own loop.
template <class Group, bool kMinimums>
inline void widen_codes(const Codes& codes, int count, float* out) {
  for (int g = 0; g < count / kCodeGroup; ++g) {
    Group::template widen<kMinimums>(codes.codes + g * kCodeGroup, codes.scales[g],
                                     kMinimums ? codes.minimums[g] : 0.0f, out + g * kCodeGroup);
  }
}

// Weights begin .. begin + count of a row, both at the borders of blocks. Float16 is left to the caller's instructions.
template <class Group>
inline void widen_blocks(WeightType type, const uint8_t* row, int64_t begin, int count, float* out) {
  const WeightLayout& layout = *find_layout(type);
  const uint8_t* from = row + begin / layout.elements * layout.bytes;
  switch (type) {
    case WeightType::kF32:
      memcpy(out, from, static_cast<size_t>(count) * sizeof *out);
      break;
    case WeightType::kF16:
      for (int i = 0; i < count; ++i) out[i] = load_half_at(from + 2 * i);
      break;
    case WeightType::kBF16:
      for (int i = 0; i < count; ++i) {
        uint16_t bits;
        memcpy(&bits, from + 2 * i, sizeof bits);
        out[i] = bfloat_to_float(bits);
      }
      break;
    default:
      with_blocks(type, [&](auto blocks) {
        Codes codes;
        for (int at = 0; at < count; at += kCodeBlock) {
          const int part = count - at < kCodeBlock ? count - at : kCodeBlock;
          blocks.unpack(from + at / layout.elements * layout.bytes, part, &codes);
          widen_codes<Group, blocks.kMinimums>(codes, part, out + at);
        }
      });
  }
}

}  // namespace
}  // namespace kvasir
