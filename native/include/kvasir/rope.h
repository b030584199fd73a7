// RoPE, the rotary position embedding: pair j of a head turns by position * frequency[j] radians.
//
// A model's RoPE is a list of head_dim / 2 frequencies, and for YaRN a factor. Begin with the plain ones and let a
// scaling change them:
//
//   double frequencies[64];
//   rope_frequencies(500000.0, 128, frequencies);
//   scale_rope_llama3(8.0, 1.0, 4.0, 8192.0, 128, frequencies);
//
// Angles are products and are reduced in double precision: at position 1,000,000 they are right to 1e-9 radians, where
// float32 would be wrong by a hundredth of a turn. Layers that differ have lists of their own.
#pragma once

#include <cstdint>

#include "kvasir/types.h"

namespace kvasir {

// frequencies[j] = base^(-2 j / head_dim), j < head_dim / 2: radians per position of plain RoPE.
void rope_frequencies(double base, int head_dim, double* frequencies);

// Linear scaling, or positional interpolation: every frequency divided by `factor` (1 or more).
void scale_rope_linear(double factor, int head_dim, double* frequencies);

// Llama 3.1: waves longer than original_context / low_factor tokens are stretched by `factor`, those shorter than
// original_context / high_factor stay, and those between are blended. low_factor < high_factor.
void scale_rope_llama3(double factor, double low_factor, double high_factor, double original_context, int head_dim,
                       double* frequencies);

// YaRN: pairs that turn more than beta_fast (32) times in original_context tokens stay, those that turn less than
// beta_slow (1) times are divided by `factor`, and those between are blended linearly by number. `base` is that of the
// plain frequencies. Returns the factor by which the model multiplies rotated queries and rotated keys,
// 0.1 ln(factor) + 1, unless its configuration says otherwise.
double scale_rope_yarn(double base, double factor, double beta_fast, double beta_slow, double original_context,
                       int head_dim, double* frequencies);

// Turns row t of `rows` ([tokens][heads][head_dim], in place) by the RoPE of position scale * (first + t).
// From keys before RoPE, scale s gives keys at interpolated positions (s = 4: those of a text four times as long); rows
// that RoPE has already turned at positions first + t need scale s - 1. Positions may be negative: that turns back.
void rotate(float* rows, int64_t tokens, int heads, int head_dim, const double* frequencies, RopePairs pairs,
            int64_t first, double scale);

}  // namespace kvasir
