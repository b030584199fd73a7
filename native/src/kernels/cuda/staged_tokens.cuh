// Tokens of the staging as codecs see them that take all kv heads together: [kv_heads][head_dim], a warp for each.
#pragma once

#include <cstdint>

#include "kernels/cuda/mma.cuh"

namespace kvasir::cuda {

struct StagedTokens {
  const uint16_t* rows;   // of kv head 0
  int64_t head_elements;  // from one kv head's rows to the next one's
  int kv_heads;
  int head_dim;

  // verb(first, values): the token's channels first .. first + 7 of all heads, for those that are this lane's.
  template <class Verb>
  __device__ __forceinline__ void for_octets(int64_t token, int lane, const Verb& verb) const {
    const int octets = head_dim / 8;
    for (int i = lane; i < kv_heads * octets; i += 32) {
      const int head = i / octets, octet = i % octets;
      const uint16_t* const from = rows + head * head_elements + token * head_dim;
      const uint4 words = __ldg(reinterpret_cast<const uint4*>(from) + octet);
      const float2 pairs[4] = {halves_to_floats(words.x), halves_to_floats(words.y), halves_to_floats(words.z),
                               halves_to_floats(words.w)};
      const float values[8] = {pairs[0].x, pairs[0].y, pairs[1].x, pairs[1].y,
                               pairs[2].x, pairs[2].y, pairs[3].x, pairs[3].y};
      verb(8 * i, values);
    }
  }
};

__device__ __forceinline__ double sum_over_warp(double x) {
  for (int mask = 1; mask < 32; mask *= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// The mean square of a token. All lanes.
__device__ __forceinline__ double mean_square(const StagedTokens& tokens, int64_t token, int lane) {
  double sum = 0.0;
  tokens.for_octets(token, lane, [&](int, const float(&values)[8]) {
    for (const float x : values) sum += static_cast<double>(x) * static_cast<double>(x);
  });
  return sum_over_warp(sum) / (tokens.kv_heads * tokens.head_dim);
}

}  // namespace kvasir::cuda
