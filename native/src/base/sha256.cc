#include "base/sha256.h"

#include <algorithm>
#include <cstring>

namespace kvasir {
namespace {

constexpr uint32_t kRounds[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u,
    0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u,
    0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau,
    0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u,
    0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
    0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u,
    0x19a4c116u, 0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u};

uint32_t turned(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

}  // namespace

void Sha256::take(const uint8_t* block) {
  uint32_t words[64];
  for (int i = 0; i < 16; ++i) {
    const uint8_t* at = block + 4 * i;
    words[i] = uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = words[i - 15], b = words[i - 2];
    words[i] = words[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + words[i - 7] +
               (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
  }
  uint32_t s[8];
  std::copy(state_, state_ + 8, s);
  // Numbers stay in their places, and names move: eight rounds later all are back.
  for (int i = 0; i < 64; i += 8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const auto at = [&](int name) -> uint32_t& { return s[(name - j) & 7]; };
      const uint32_t chosen = (at(4) & at(5)) ^ (~at(4) & at(6));
      const uint32_t most = (at(0) & at(1)) ^ (at(0) & at(2)) ^ (at(1) & at(2));
      const uint32_t first =
          at(7) + (turned(at(4), 6) ^ turned(at(4), 11) ^ turned(at(4), 25)) + chosen + kRounds[i + j] + words[i + j];
      at(3) += first;
      at(7) = first + (turned(at(0), 2) ^ turned(at(0), 13) ^ turned(at(0), 22)) + most;
    }
  }
  for (int i = 0; i < 8; ++i) state_[i] += s[i];
}

Sha256& Sha256::add(const void* bytes, size_t count) {
  const auto* at = static_cast<const uint8_t*>(bytes);
  while (count > 0) {
    const size_t held = count_ % 64;
    if (held == 0 && count >= 64) {
      take(at);
      at += 64;
      count -= 64;
      count_ += 64;
      continue;
    }
    const size_t taken = std::min(count, 64 - held);
    std::memcpy(waiting_ + held, at, taken);
    at += taken;
    count -= taken;
    count_ += taken;
    if (count_ % 64 == 0) take(waiting_);
  }
  return *this;
}

Digest Sha256::finish() {
  const uint64_t bits = 8 * count_;
  const uint8_t one = 0x80, zero = 0;
  add(&one, 1);
  while (count_ % 64 != 56) add(&zero, 1);
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  add(length, sizeof length);
  Digest digest;
  for (size_t i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

std::string hex(const uint8_t* bytes, size_t count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

}  // namespace kvasir
