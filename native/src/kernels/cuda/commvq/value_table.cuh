// A codebook of values as matrices of in_order_product.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/mma.cuh"

namespace kvasir::cuda {

// As commvq::ValueModel has it: [kv_heads][codes][head_dim].
struct ValueTable {
  const uint16_t* elements;
  int codes, head_dim;
  uint32_t per_head;  // 2^32 / head_dim, rounded up: quotients of numbers below 2^16 are exact

  ValueTable(const uint16_t* elements, int codes, int head_dim)
      : elements(elements), codes(codes), head_dim(head_dim), per_head(0xffffffffu / head_dim + 1) {}

  __device__ __forceinline__ float4 four(int code, int channel) const {
    const int head = static_cast<int>(__umulhi(static_cast<uint32_t>(channel), per_head));
    const int64_t row = static_cast<int64_t>(head) * codes + code;
    const uint2 words = __ldg(reinterpret_cast<const uint2*>(elements + row * head_dim + (channel - head * head_dim)));
    const float2 low = halves_to_floats(words.x), high = halves_to_floats(words.y);
    return make_float4(low.x, low.y, high.x, high.y);
  }
};

// The rows of the codebook,
struct TableRows {
  static constexpr bool kAcross = false, kBits = false;
  ValueTable table;

  __device__ __forceinline__ float4 at(int64_t code, int channel) const {
    return table.four(static_cast<int>(code), channel);
  }
};

// and its columns.
struct TableColumns {
  static constexpr bool kAcross = true, kBits = false;
  ValueTable table;

  __device__ __forceinline__ float4 at(int64_t channel, int code) const {
    return table.four(code, static_cast<int>(channel));
  }
};

}  // namespace kvasir::cuda
