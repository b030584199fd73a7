// Tokens of the staging as codecs see them that take all kv heads together: [kv_heads][head_dim], a warp for each.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/mma.cuh"

namespace kvasir::cuda {

struct StagedTokens {
  const uint16_t* rows;   // of kv head 0
  int64_t head_elements;  // from one kv head's rows to the next one's
  int kv_heads;
  int head_dim;

  // verb(first, values): the token's channels first .. first + 3 of all heads, for those that are this lane's.
  template <class Verb>
  __device__ __forceinline__ void for_quads(int64_t token, int lane, const Verb& verb) const {
    const int quads = head_dim / 4;
    for (int i = lane; i < kv_heads * quads; i += 32) {
      const int head = i / quads, quad = i % quads;
      const uint16_t* const from = rows + head * head_elements + token * head_dim;
      const uint2 words = __ldg(reinterpret_cast<const uint2*>(from) + quad);
      const float2 low = halves_to_floats(words.x), high = halves_to_floats(words.y);
      verb(4 * i, make_float4(low.x, low.y, high.x, high.y));
    }
  }
};

// The mean square of a token. All lanes.
__device__ __forceinline__ double mean_square(const StagedTokens& tokens, int64_t token, int lane) {
  double sum = 0.0;
  const auto add = [&](float x) { sum += static_cast<double>(x) * static_cast<double>(x); };
  tokens.for_quads(token, lane, [&](int, const float4& four) {
    add(four.x);
    add(four.y);
    add(four.z);
    add(four.w);
  });
  return sum_over_warp(sum) / (tokens.kv_heads * tokens.head_dim);
}

}  // namespace kvasir::cuda
