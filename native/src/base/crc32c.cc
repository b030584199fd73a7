#include "base/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define KVASIR_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>  // CMake compiles this file with +crc: clang has the instructions in no other way

#include "base/arm_features.h"
#define KVASIR_CRC_TARGET
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

bool has_instruction() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2");
#else
  return arm::has_crc();
#endif
}

#endif

using Raw = uint32_t (*)(const uint8_t*, size_t, uint32_t);

Raw best() {
#ifdef KVASIR_CRC_TARGET
  if (has_instruction()) return raw_by_instruction;
#endif
  return raw_by_tables;
}

}  // namespace

uint32_t crc32c(const void* bytes, size_t count, uint32_t before) {
  static const Raw raw = best();
  return ~raw(static_cast<const uint8_t*>(bytes), count, ~before);
}

uint32_t crc32c_copy(void* to, const void* from, size_t count, uint32_t before) {
  // As much as the first cache holds of both: the checksum then costs no memory traffic. (To load, add and store word
  // by word is half as fast as this: three streams of stores are more than the machine likes.)
  constexpr size_t kNear = 12 * 2048;
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  for (size_t done = 0; done < count; done += kNear) {
    const size_t some = std::min(kNear, count - done);
    std::memcpy(out + done, in + done, some);
    before = crc32c(out + done, some, before);
  }
  return before;
}

uint32_t crc32c_by_tables(const void* bytes, size_t count, uint32_t before) {
  return ~raw_by_tables(static_cast<const uint8_t*>(bytes), count, ~before);
}

}  // namespace kvasir
