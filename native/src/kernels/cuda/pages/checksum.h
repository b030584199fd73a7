// CRC-32C of bytes in device memory: the number that base/crc32c.h has for them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvasir::cuda {

// Memory and sizes are multiples of 64; at most 1 GB each.
struct ChecksumPart {
  const uint8_t* bytes;
  int64_t count;
};

// sums[i], in device memory: of parts[i]. The list is read before this returns.
cudaError_t checksum_parts(const ChecksumPart* parts, int count, uint32_t* sums, cudaStream_t stream);

}  // namespace kvasir::cuda
