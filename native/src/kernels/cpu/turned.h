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
    int j = 0;
    for (; j + kLanes <= half; j += kLanes) {
      const F32 re = load(key + j), im = load(key + half + j), c = load(cosine + j), s = load(sine + j);
      store(key + j, re * c - im * s);
      store(key + half + j, re * s + im * c);
    }
    for (; j < half; ++j) {
      const float re = key[j], im = key[half + j];
      key[j] = re * cosine[j] - im * sine[j];
      key[half + j] = re * sine[j] + im * cosine[j];
    }
  }
  for (int r = 0; r < queries.count; ++r) {
    const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
    F32 a = splat(0.0f), b = a, c = a, e = a;
    for (int i = 0; i < head_dim; i += kLanes) {
      const F32 q = load(query + i);
      a = fma(q, load(keys[0] + i), a);
      b = fma(q, load(keys[1] + i), b);
      c = fma(q, load(keys[2] + i), c);
      e = fma(q, load(keys[3] + i), e);
    }
    float out[kTurnedTokens];
    store_sums(out, a, b, c, e);
    for (int i = 0; i < count; ++i) scores[r * kPageTokens + first + i] = out[i];
  }
}

}  // namespace kvasir::KVASIR_LEVEL
