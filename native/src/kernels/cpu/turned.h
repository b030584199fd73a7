// Scores of keys that are turned by RoPE on the way: a few planar float rows at a time.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/kernels.h"

namespace kvasir::KVASIR_LEVEL {

constexpr int kTurnedTokens = 4;

// keys: planar rows of tokens first .. first + count - 1 of the tile, overwritten. Turned by queries.turns, then
// multiplied with every query.
inline void score_turned(float (&keys)[kTurnedTokens][kMaxHeadDim], int count, int head_dim, int first,
                         const TileInput& queries, float* scores) {
  const int half = head_dim / 2;
  for (int i = 0; i < count; ++i) {
    const float* cosine = queries.turns + static_cast<size_t>(first + i) * head_dim;
    const float* sine = cosine + half;
    float* key = keys[i];
    for (int j = 0; j < half; ++j) {
      const float re = key[j], im = key[half + j];
      key[j] = re * cosine[j] - im * sine[j];
      key[half + j] = re * sine[j] + im * cosine[j];
    }
  }
  for (int r = 0; r < queries.count; ++r) {
    const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
    F32 sums[kTurnedTokens];
    for (int i = 0; i < kTurnedTokens; ++i) sums[i] = splat(0.0f);
    for (int c = 0; c < head_dim; c += kLanes) {
      const F32 q = load(query + c);
      for (int i = 0; i < kTurnedTokens; ++i) sums[i] = fma(q, load(keys[i] + c), sums[i]);
    }
    float out[4];
    store_sums(out, sums[0], sums[1], sums[2], sums[3]);
    for (int i = 0; i < count; ++i) scores[r * kPageTokens + first + i] = out[i];
  }
}

}  // namespace kvasir::KVASIR_LEVEL
