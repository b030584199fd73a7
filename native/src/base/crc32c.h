// CRC-32C (Castagnoli), the checksum of everything that is saved. Any single burst of up to 32 wrong bits is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvasir {

// Of `bytes`, behind bytes whose checksum is `before`.
uint32_t crc32c(const void* bytes, size_t count, uint32_t before = 0);

// Copies, and takes the checksum of the copy: bytes that others may change are read once.
uint32_t crc32c_copy(void* to, const void* from, size_t count, uint32_t before = 0);

// A way to do both: by products of polynomials (PCLMULQDQ, PMULL), with the machine's instruction for it (SSE4.2, the
// CRC extension of ARMv8), by tables. They give the same numbers.
struct Crc32cWay {
  const char* name;
  uint32_t (*sum)(const void* bytes, size_t count, uint32_t before);
  uint32_t (*copy)(void* to, const void* from, size_t count, uint32_t before);
};

// Those that this machine has, the one that is used first; tables are there always, and last.
const std::vector<Crc32cWay>& crc32c_ways();

}  // namespace kvasir
