// An input of libFuzzer as a stream of small decisions. A stream that has ended says 0 for ever, so every prefix of an
// input is an input.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kvasir/error.h"

namespace kvasir::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool ended() const { return at_ >= size_; }
  int byte() { return ended() ? 0 : data_[at_++]; }
  // 0..below-1.
  int pick(int below) { return below > 256 ? (byte() << 8 | byte()) % below : byte() % below; }
  bool flip() { return (byte() & 1) != 0; }
  bool rarely() { return byte() >= 240; }

  // Any number that a caller could pass by mistake: small ones, the ends of the range, and whatever the bytes say.
  int64_t wild() {
    static constexpr int64_t kEnds[] = {0, -1, 1, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int64_t{1} << 32};
    const int kind = pick(4);
    if (kind == 0) return kEnds[pick(8)];
    int64_t bits = 0;
    for (int i = 0; i < (kind == 1 ? 8 : 2); ++i) bits = bits << 8 | byte();
    return bits;
  }
  // The same as a float, NaN and infinity included.
  float wild_float() {
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits = bits << 8 | static_cast<uint32_t>(byte());
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  // Numbers as models have them, from a seed of two bytes: a program needs rows, not their every bit.
  std::vector<float> rows(int64_t count) {
    uint64_t state = static_cast<uint64_t>(byte() << 8 | byte()) * 2 + 1;
    std::vector<float> numbers(static_cast<size_t>(count));
    for (float& number : numbers) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      number = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-30f;
    }
    return numbers;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

// What a fuzzer asserts, in every build.
inline void require(bool truth, const char* what) {
  if (truth) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

// Runs a call; returns whether it succeeded. Anything thrown but a typed error ends the fuzzer.
template <typename Call>
bool succeeds(Call call) {
  try {
    call();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace kvasir::fuzz
