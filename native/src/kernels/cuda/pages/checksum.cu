// Checksums are sums: of the checksum that each chunk of 64 bytes has alone, shifted over the bytes behind it. A shift
// is a product of polynomials over two elements, by a power of x.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/pages/checksum.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256, kWarp = 32;
constexpr int kChunk = 64;
constexpr int kChunkBits = 9;                  // 8 * kChunk is 2 to that
constexpr int kPowers = 24;                    // chunks of 1 GB
constexpr uint32_t kPolynomial = 0x82F63B78u;  // reflected: bit 31 is the lowest power

// Of two polynomials, modulo the one above.
__host__ __device__ uint32_t product(uint32_t a, uint32_t b) {
  uint32_t sum = 0;
  for (int i = 31; i >= 0; --i) {
    sum ^= a >> i & 1 ? b : 0;
    b = b >> 1 ^ (b & 1 ? kPolynomial : 0);
  }
  return sum;
}

struct Powers {
  uint32_t of[kPowers];  // entry i: what shifts over 2^i chunks
};

Powers make_powers() {
  Powers powers;
  uint32_t power = uint32_t{1} << 30;  // x
  for (int i = 0; i < kChunkBits; ++i) power = product(power, power);
  for (uint32_t& each : powers.of) {
    each = power;
    power = product(power, power);
  }
  return powers;
}

struct Request {
  static constexpr int kMost = 128;
  ChecksumPart parts[kMost];
  Powers powers;
  uint32_t* sums;
};

// Entry b of table k is what byte b becomes when k zero bytes follow it.
__device__ void make_tables(uint32_t (&tables)[8][256]) {
  uint32_t crc = threadIdx.x;
  for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
  tables[0][threadIdx.x] = crc;
  __syncthreads();
  for (int k = 1; k < 8; ++k) {
    crc = crc >> 8 ^ tables[0][crc & 0xFF];
    tables[k][threadIdx.x] = crc;
  }
  __syncthreads();
}

__device__ uint32_t add_word(const uint32_t (&tables)[8][256], uint32_t crc, uint32_t low, uint32_t high) {
  low ^= crc;
  crc = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    crc ^= tables[7 - i][low >> (8 * i) & 0xFF] ^ tables[3 - i][high >> (8 * i) & 0xFF];
  }
  return crc;
}

__global__ void __launch_bounds__(kThreads) checksum(const __grid_constant__ Request request) {
  __shared__ uint32_t tables[8][256];
  make_tables(tables);
  const ChecksumPart& part = request.parts[blockIdx.y];
  const int64_t chunks = part.count / kChunk;
  uint32_t sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < chunks; i += int64_t{gridDim.x} * kThreads) {
    uint32_t crc = i == 0 ? ~0u : 0;
    const auto* words = reinterpret_cast<const uint4*>(part.bytes + i * kChunk);
#pragma unroll
    for (int w = 0; w < kChunk / 16; ++w) {
      const uint4 four = words[w];
      crc = add_word(tables, crc, four.x, four.y);
      crc = add_word(tables, crc, four.z, four.w);
    }
    const int64_t behind = chunks - 1 - i;
    for (int bit = 0; bit < kPowers && behind >> bit != 0; ++bit) {
      if (behind >> bit & 1) crc = product(crc, request.powers.of[bit]);
    }
    sum ^= crc;
  }
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) sum ^= __shfl_xor_sync(~0u, sum, lanes);
  // `sums` begins as all ones: the complement at the end.
  if (threadIdx.x % kWarp == 0 && sum != 0) atomicXor(request.sums + blockIdx.y, sum);
}

}  // namespace

cudaError_t checksum_parts(const ChecksumPart* parts, int count, uint32_t* sums, cudaStream_t stream) {
  cudaError_t status = cudaMemsetAsync(sums, 0xFF, static_cast<size_t>(count) * sizeof(uint32_t), stream);
  static const Powers powers = make_powers();
  Request request;
  request.powers = powers;
  for (int done = 0; done < count && status == cudaSuccess; done += Request::kMost) {
    const int some = std::min(count - done, Request::kMost);
    std::copy_n(parts + done, some, request.parts);
    int64_t most = 0;
    for (int i = 0; i < some; ++i) {
      if (parts[done + i].count % kChunk != 0 || parts[done + i].count > int64_t{1} << 30) return cudaErrorInvalidValue;
      most = std::max(most, parts[done + i].count);
    }
    request.sums = sums + done;
    const int64_t blocks = std::clamp<int64_t>((most / kChunk + kThreads - 1) / kThreads, 1, 64);
    checksum<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(some)), kThreads, 0, stream>>>(request);
    status = cudaGetLastError();
  }
  return status;
}

}  // namespace kvasir::cuda
