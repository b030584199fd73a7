// RoPE for attention over keys that are stored before it. With p the position of a tile's first token,
//
//   <q, R(p + t) k> = <R(-p) q, R(t) k>
//
// so queries are turned once per tile, keys by one small table of offsets, and nothing is stored by position. Sines of
// positions are computed once for every kPageTokens of them, and kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/rope.h"

namespace kvasir {

class PageTurns {
 public:
  // magnitude: what the model multiplies rotated keys by (YaRN), else 1.
  PageTurns(const double* frequencies, int head_dim, double magnitude);
  ~PageTurns();
  PageTurns(const PageTurns&) = delete;
  PageTurns& operator=(const PageTurns&) = delete;

  // [kPageTokens][2][head_dim / 2]: cosines and sines of 0 .. kPageTokens - 1, times the magnitude.
  const float* offsets() const { return offsets_.cosine(0); }
  // Turns `count` planar rows ([count][head_dim]) by -position.
  void turn_back(int64_t position, const float* rows, int count, float* out) const;

 private:
  static constexpr int64_t kChunk = 256;  // multiples of kPageTokens that are computed together
  static constexpr int64_t kChunks = 1024;

  // Cosines, then sines, of multiple * kPageTokens; `scratch` where it is not kept.
  const float* page(int64_t multiple, float* scratch) const;

  Turns offsets_;
  Turns plain_;  // magnitude 1
  mutable std::mutex mutex_;
  mutable std::unique_ptr<std::atomic<float*>[]> chunks_;
};

}  // namespace kvasir
