// CRC-32C (Castagnoli), the checksum of everything that is saved: with the machine's instruction for it where there is
// one (SSE4.2, the CRC extension of ARMv8), else by tables. Any single burst of up to 32 wrong bits is found.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir {

// Of `bytes`, behind bytes whose checksum is `before`.
uint32_t crc32c(const void* bytes, size_t count, uint32_t before = 0);

// Copies, and takes the checksum of the copy: bytes that others may change are read once.
uint32_t crc32c_copy(void* to, const void* from, size_t count, uint32_t before = 0);

// The checksum by tables alone, for tests.
uint32_t crc32c_by_tables(const void* bytes, size_t count, uint32_t before = 0);

}  // namespace kvasir
