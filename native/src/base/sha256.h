// SHA-256 (FIPS 180-4), for what names things by their content. Plain C++: it sees descriptions and codebooks, once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvasir {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256& add(const void* bytes, size_t count);
  template <class T>
  Sha256& add_number(T number) {
    uint8_t bytes[sizeof(T)];
    for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<uint8_t>(static_cast<uint64_t>(number) >> (8 * i));
    return add(bytes, sizeof bytes);
  }
  // Of all that was added. Once.
  Digest finish();

 private:
  void take(const uint8_t* block);

  uint32_t state_[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                        0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
  uint8_t waiting_[64];
  uint64_t count_ = 0;
};

std::string hex(const uint8_t* bytes, size_t count);
inline std::string hex(const Digest& digest) { return hex(digest.data(), digest.size()); }

}  // namespace kvasir
