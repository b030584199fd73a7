// Checksums on the device are those of base/crc32c.h.
#include "kernels/cuda/pages/checksum.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <random>
#include <vector>

#include "base/crc32c.h"
#include "check.h"

namespace {

DEVICE_CASE("checksums of many parts of any size") {
  std::mt19937 random(3);
  std::vector<uint8_t> bytes(size_t{9} << 20);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  uint8_t* memory = nullptr;
  uint32_t* sums = nullptr;
  CUDA(cudaMalloc(reinterpret_cast<void**>(&memory), bytes.size()));
  CUDA(cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  std::vector<kvasir::cuda::ChecksumPart> parts;
  std::vector<uint32_t> expected;
  const auto add = [&](size_t first, size_t count) {
    parts.push_back({memory + first, static_cast<int64_t>(count)});
    expected.push_back(kvasir::crc32c(bytes.data() + first, count));
  };
  add(0, bytes.size());
  for (const size_t count : {64, 128, 192, 4096, 16320, 16384, 16448, 73728, 1048576}) {
    for (const size_t first : {0, 64, 6400}) add(first, count);
  }
  for (size_t i = 0; i < 300; ++i) add(64 * (random() % 1000), 64 * (1 + random() % 3000));  // some launches
  CUDA(cudaMalloc(reinterpret_cast<void**>(&sums), parts.size() * sizeof(uint32_t)));
  for (int round = 0; round < 2; ++round) {
    CUDA(kvasir::cuda::checksum_parts(parts.data(), static_cast<int>(parts.size()), sums, nullptr));
    std::vector<uint32_t> got(parts.size());
    CUDA(cudaMemcpy(got.data(), sums, got.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < parts.size(); ++i) CHECK(got[i] == expected[i], i << ": " << parts[i].count << " bytes");
  }
  const kvasir::cuda::ChecksumPart odd = {memory, 65};
  CHECK(kvasir::cuda::checksum_parts(&odd, 1, sums, nullptr) == cudaErrorInvalidValue, "65 bytes");
  CUDA(cudaFree(sums));
  CUDA(cudaFree(memory));
}

}  // namespace
