// Random pages made on the device: benchmarks need gigabytes of them and no encoder.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/layout/labels.h"

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

// What labels of a page may be.
struct Labels {
  int fixed;     // patterns; 0: blocks have no labels
  bool added;    // each page of a sequence adds one
  int pages;     // of a sequence
  int kv_heads;  // blocks of a page

  __host__ __device__ int most(int page) const {
    const int all = fixed + (added ? page + 1 : 0);
    return all < kvasir::cuda::kMaxVisible ? all : kvasir::cuda::kMaxVisible;
  }
};

// `count` head blocks, one after the other.
__global__ void fill_blocks(uint8_t* blocks, int64_t count, kvasir::cuda::HeadLayout layout, Labels labels,
                            uint64_t seed) {
  const int words = layout.bytes() / 4;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count * words; i += stride) {
    int byte = static_cast<int>(i % words) * 4 - layout.label_bytes();
    const uint32_t bits = hashed(seed + static_cast<uint64_t>(i));
    if (byte < 0) {
      const uint32_t most = labels.most(static_cast<int>(i / words / labels.kv_heads % labels.pages)) + 1;
      uint32_t four = 0;
      for (int b = 0; b < 4; ++b) four |= hashed(bits + b) % most << 8 * b;
      reinterpret_cast<uint32_t*>(blocks)[i] = four;
      continue;
    }
    const kvasir::cuda::PartLayout key = layout.key(), value = layout.value();
    const bool keys = byte < layout.value_offset(0);
    byte = keys ? byte % key.bytes() : (byte - layout.value_offset(0)) % value.bytes();
    const kvasir::cuda::PartLayout part = keys ? key : value;
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

// Float16 numbers in -1 .. 1.
__global__ void fill_halves(__half* halves, int64_t count, uint64_t seed) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    halves[i] = __float2half_rn(unit(hashed(seed + static_cast<uint64_t>(i))));
  }
}

}  // namespace bench
