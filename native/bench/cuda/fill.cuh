// Random pages made on the device: benchmarks need gigabytes of them and no encoder.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/layout.h"

namespace bench {

__host__ __device__ inline uint32_t hashed(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  return static_cast<uint32_t>(x);
}

// Uniform in -1 .. 1.
__host__ __device__ inline float unit(uint32_t bits) {
  return static_cast<float>(bits >> 8) * (2.0f / (1 << 24)) - 1.0f;
}

// {range, lo} of a group: range in 1..3, centred near 0.
__device__ inline uint32_t random_parameters(uint32_t bits) {
  const float range = 2.0f + unit(bits * 2654435761u);
  const __half2 pair = __floats2half2_rn(range, -0.5f * range + 0.2f * unit(bits));
  uint32_t word;
  memcpy(&word, &pair, 4);
  return word;
}

// `count` head blocks, one after the other.
__global__ void fill_blocks(uint8_t* blocks, int64_t count, kvasir::cuda::HeadLayout layout, uint64_t seed) {
  const int words = layout.bytes() / 4;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count * words; i += stride) {
    int byte = static_cast<int>(i % words) * 4;
    const kvasir::cuda::PartLayout key = layout.key(), value = layout.value();
    const bool keys = byte < key.bytes();
    if (!keys) byte = (byte - key.bytes()) % value.bytes();
    const kvasir::cuda::PartLayout part = keys ? key : value;
    const uint32_t bits = hashed(seed + static_cast<uint64_t>(i));
    uint32_t word = bits;
    if (byte < part.parameter_bytes()) {
      word = random_parameters(bits);
    } else if (part.bits == kvasir::cuda::kFloat16Bits) {
      const __half2 pair = __floats2half2_rn(unit(bits), unit(bits * 2654435761u));
      memcpy(&word, &pair, 4);
    }
    reinterpret_cast<uint32_t*>(blocks)[i] = word;
  }
}

}  // namespace bench
