// RoPE inside the library: the channels of a pair, and turns that attention can afford.
//
// Attention over pages needs no table by position. With p the first position of a page and t < kTurnTokens,
//
//   <q, R(p + t) k> = <R(-p) q, R(t) k>
//
// so a page turns the queries once, by Turns::at(-p), and all its keys by the same small table of offsets.
#pragma once

#include <cstdint>

#include "base/aligned.h"
#include "kvasir/types.h"

namespace kvasir {

// The two channels of pair j.
struct RopePair {
  int a, b;
  RopePair(RopePairs pairs, int j, int head_dim)
      : a(pairs == RopePairs::kHalves ? j : 2 * j), b(pairs == RopePairs::kHalves ? j + head_dim / 2 : 2 * j + 1) {}
};

// Throws kInvalidArgument where the value is none of the enumeration.
void require_rope_pairs(RopePairs pairs);

// Rows in planar form hold the first channels of all pairs, then the second ones: a complex vector as real parts and
// imaginary parts. With kHalves that is what they are already.
void to_planar(RopePairs pairs, int head_dim, const float* row, float* planar);
void from_planar(RopePairs pairs, int head_dim, const float* planar, float* row);

// The turns of one layer.
class Turns {
 public:
  static constexpr int kTurnTokens = 128;

  // magnitude: what cosines and sines are multiplied by (YaRN's factor, else 1).
  Turns(const double* frequencies, int head_dim, double magnitude);

  int half() const { return half_; }
  // cosine, sine: [head_dim / 2], of `position`, any sign. Computed in double, rounded once.
  void at(int64_t position, float* cosine, float* sine) const;
  // The same for position t, 0 <= t < kTurnTokens, from the table.
  const float* cosine(int t) const { return table_.get() + static_cast<size_t>(t) * 2 * half_; }
  const float* sine(int t) const { return cosine(t) + half_; }

 private:
  int half_;
  double magnitude_;
  AlignedArray<double> frequencies_;
  AlignedArray<float> table_;  // [kTurnTokens][cosines, sines]
};

// planar: real and imaginary parts, [2][half], turned in place.
inline void turn_planar(const float* cosine, const float* sine, int half, float* planar) {
  for (int j = 0; j < half; ++j) {
    const float re = planar[j], im = planar[half + j];
    planar[j] = re * cosine[j] - im * sine[j];
    planar[half + j] = re * sine[j] + im * cosine[j];
  }
}

}  // namespace kvasir
