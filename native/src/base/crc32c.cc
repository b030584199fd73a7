#include "base/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/processor.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#define KVASIR_CRC_TARGET __attribute__((target("sse4.2")))
#define KVASIR_PRODUCT_TARGET __attribute__((target("sse4.2,pclmul")))
#elif defined(__aarch64__)
#include <arm_acle.h>  // CMake compiles this file with +crc+crypto: clang has the instructions in no other way
#include <arm_neon.h>

#define KVASIR_CRC_TARGET
#define KVASIR_PRODUCT_TARGET
#endif

namespace kvasir {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // reflected

// Eight tables: entry b of table k is what byte b becomes when k zero bytes follow it.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

Tables make_tables() {
  Tables tables;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = crc >> 8 ^ tables[0][crc & 0xFF];
    }
  }
  return tables;
}

const Tables& tables() {
  static const Tables made = make_tables();
  return made;
}

uint64_t load64(const uint8_t* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// Without the complements at both ends.
uint32_t raw_by_tables(const uint8_t* at, size_t count, uint32_t crc) {
  const Tables& t = tables();
  for (; count >= 8; at += 8, count -= 8) {
    const uint64_t word = load64(at) ^ crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) crc ^= t[7 - i][word >> (8 * i) & 0xFF];
  }
  for (; count > 0; ++at, --count) crc = crc >> 8 ^ t[0][(crc ^ *at) & 0xFF];
  return crc;
}

#ifdef KVASIR_CRC_TARGET

// The instruction has a latency of some cycles and could begin every cycle: three streams of so many bytes side by side
// keep it busy. What came before a stream is shifted over its bytes by a linear map, one table for each byte of a CRC.
constexpr size_t kStream = 2048;
using Shift = std::array<std::array<uint32_t, 256>, 4>;

Shift make_shift() {
  static const uint8_t zeros[kStream] = {};
  uint32_t of_bit[32];
  for (int bit = 0; bit < 32; ++bit) of_bit[bit] = raw_by_tables(zeros, kStream, uint32_t{1} << bit);
  Shift shift = {};
  for (size_t place = 0; place < 4; ++place) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      for (size_t bit = 0; bit < 8; ++bit) {
        if (byte >> bit & 1) shift[place][byte] ^= of_bit[8 * place + bit];
      }
    }
  }
  return shift;
}

uint32_t shifted(const Shift& shift, uint32_t crc) {
  return shift[0][crc & 0xFF] ^ shift[1][crc >> 8 & 0xFF] ^ shift[2][crc >> 16 & 0xFF] ^ shift[3][crc >> 24];
}

KVASIR_CRC_TARGET inline uint32_t step8(uint32_t crc, uint64_t word) {
#if defined(__x86_64__)
  return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
#else
  return __crc32cd(crc, word);
#endif
}

KVASIR_CRC_TARGET inline uint32_t step1(uint32_t crc, uint8_t byte) {
#if defined(__x86_64__)
  return _mm_crc32_u8(crc, byte);
#else
  return __crc32cb(crc, byte);
#endif
}

KVASIR_CRC_TARGET uint32_t raw_by_instruction(const uint8_t* at, size_t count, uint32_t crc) {
  static const Shift shift = make_shift();
  for (; count >= 3 * kStream; at += 3 * kStream, count -= 3 * kStream) {
    uint32_t second = 0, third = 0;
#pragma GCC unroll 8
    for (size_t i = 0; i < kStream; i += 8) {
      crc = step8(crc, load64(at + i));
      second = step8(second, load64(at + kStream + i));
      third = step8(third, load64(at + 2 * kStream + i));
    }
    crc = shifted(shift, shifted(shift, crc) ^ second) ^ third;
  }
  for (; count >= 8; at += 8, count -= 8) crc = step8(crc, load64(at));
  for (; count > 0; ++at, --count) crc = step1(crc, *at);
  return crc;
}

// Of a sum that reads faster than a copy writes: as much at a time as the first cache holds of both, so that the
// checksum costs no memory traffic. (To load, add and store word by word is half as fast: three streams of stores are
// more than the machine likes.)
uint32_t copy_by_instruction(uint8_t* to, const uint8_t* from, size_t count, uint32_t crc) {
  constexpr size_t kNear = 12 * kStream;
  for (size_t done = 0; done < count; done += kNear) {
    const size_t some = std::min(kNear, count - done);
    std::memcpy(to + done, from + done, some);
    crc = raw_by_instruction(to + done, some, crc);
  }
  return crc;
}

// 16 bytes as a polynomial, the first bit of the first byte its highest power.
#if defined(__x86_64__)
using Polynomial = __m128i;

KVASIR_PRODUCT_TARGET inline Polynomial load(const uint8_t* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
KVASIR_PRODUCT_TARGET inline void store(uint8_t* at, Polynomial p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at), p);
}
KVASIR_PRODUCT_TARGET inline Polynomial sum(Polynomial a, Polynomial b) { return _mm_xor_si128(a, b); }
KVASIR_PRODUCT_TARGET inline Polynomial product_of_first(Polynomial a, Polynomial b) {
  return _mm_clmulepi64_si128(a, b, 0x00);
}
KVASIR_PRODUCT_TARGET inline Polynomial product_of_last(Polynomial a, Polynomial b) {
  return _mm_clmulepi64_si128(a, b, 0x11);
}
#else
using Polynomial = uint64x2_t;

inline Polynomial load(const uint8_t* at) { return vreinterpretq_u64_u8(vld1q_u8(at)); }
inline void store(uint8_t* at, Polynomial p) { vst1q_u8(at, vreinterpretq_u8_u64(p)); }
inline Polynomial sum(Polynomial a, Polynomial b) { return veorq_u64(a, b); }
inline Polynomial product_of_first(Polynomial a, Polynomial b) {
  return vreinterpretq_u64_p128(
      vmull_p64(static_cast<poly64_t>(vgetq_lane_u64(a, 0)), static_cast<poly64_t>(vgetq_lane_u64(b, 0))));
}
inline Polynomial product_of_last(Polynomial a, Polynomial b) {
  return vreinterpretq_u64_p128(vmull_high_p64(vreinterpretq_p64_u64(a), vreinterpretq_p64_u64(b)));
}
#endif

// Eight polynomials side by side hide what a product takes; they come from one stream of loads and go to one of stores.
constexpr size_t kLanes = 8;
constexpr size_t kTurn = kLanes * sizeof(Polynomial);

// A polynomial and the bytes kTurn further have the checksum of their sum once the polynomial is multiplied by
// x^(8 kTurn), modulo that of CRC. Its halves of 64 bits are multiplied apart, the first by x^64 more; the product of
// two reflected numbers is one place too low, hence the 1.
struct FoldFactors {
  uint64_t of_first, of_last;

  FoldFactors() : of_first(power_of_x(8 * kTurn + 64 - 1)), of_last(power_of_x(8 * kTurn - 1)) {}

  static uint64_t power_of_x(size_t exponent) {
    uint32_t power = uint32_t{1} << 31;
    for (size_t i = 0; i < exponent; ++i) power = power >> 1 ^ (power & 1 ? kPolynomial : 0);
    return uint64_t{power} << 32;
  }
};

KVASIR_PRODUCT_TARGET uint32_t copy_by_products(uint8_t* to, const uint8_t* from, size_t count, uint32_t crc) {
  static const FoldFactors numbers;
  if (count >= 2 * kTurn) {
    const Polynomial factors = load(reinterpret_cast<const uint8_t*>(&numbers));
    uint8_t left[kTurn] = {};
    std::memcpy(left, &crc, sizeof crc);  // what came before is added to the first bytes
    Polynomial folded[kLanes];
#pragma GCC unroll 8
    for (size_t i = 0; i < kLanes; ++i) {
      const Polynomial own = load(from + 16 * i);
      store(to + 16 * i, own);
      folded[i] = sum(own, load(left + 16 * i));
    }
    for (from += kTurn, to += kTurn, count -= kTurn; count >= kTurn; from += kTurn, to += kTurn, count -= kTurn) {
#pragma GCC unroll 8
      for (size_t i = 0; i < kLanes; ++i) {
        const Polynomial own = load(from + 16 * i);
        store(to + 16 * i, own);
        folded[i] = sum(sum(product_of_first(folded[i], factors), own), product_of_last(folded[i], factors));
      }
    }
    // As many bytes as one turn, which have the checksum of all.
#pragma GCC unroll 8
    for (size_t i = 0; i < kLanes; ++i) store(left + 16 * i, folded[i]);
    crc = raw_by_instruction(left, kTurn, 0);
  }
  return copy_by_instruction(to, from, count, crc);
}

struct Features {
  bool instruction, products;
};

Features features() { return {processor::has_crc(), processor::has_crc() && processor::has_polynomial_products()}; }

#endif

uint32_t copy_by_tables(uint8_t* to, const uint8_t* from, size_t count, uint32_t crc) {
  std::memcpy(to, from, count);
  return raw_by_tables(to, count, crc);
}

// With the complements.
template <uint32_t (*raw)(const uint8_t*, size_t, uint32_t)>
uint32_t whole_sum(const void* bytes, size_t count, uint32_t before) {
  return ~raw(static_cast<const uint8_t*>(bytes), count, ~before);
}

template <uint32_t (*raw)(uint8_t*, const uint8_t*, size_t, uint32_t)>
uint32_t whole_copy(void* to, const void* from, size_t count, uint32_t before) {
  if (count == 0) return before;  // `from` and `to` may be null
  return ~raw(static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), count, ~before);
}

std::vector<Crc32cWay> find_ways() {
  std::vector<Crc32cWay> ways;
#ifdef KVASIR_CRC_TARGET
  // Without a copy the instruction alone is as fast as products are.
  const Features has = features();
  if (has.products) ways.push_back({"products", whole_sum<raw_by_instruction>, whole_copy<copy_by_products>});
  if (has.instruction) ways.push_back({"instruction", whole_sum<raw_by_instruction>, whole_copy<copy_by_instruction>});
#endif
  ways.push_back({"tables", whole_sum<raw_by_tables>, whole_copy<copy_by_tables>});
  return ways;
}

}  // namespace

const std::vector<Crc32cWay>& crc32c_ways() {
  static const std::vector<Crc32cWay> ways = find_ways();
  return ways;
}

uint32_t crc32c(const void* bytes, size_t count, uint32_t before) {
  return crc32c_ways().front().sum(bytes, count, before);
}

uint32_t crc32c_copy(void* to, const void* from, size_t count, uint32_t before) {
  return crc32c_ways().front().copy(to, from, count, before);
}

}  // namespace kvasir
