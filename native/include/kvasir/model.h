// What a model needs beside attention: products with weights in the types that files hold them in, norms, RoPE, the
// middle of a feed-forward layer. The cache does not know any of it.
//
// Plain functions on row-major arrays, which are borrowed for the call alone. Work is spread over the library's
// threads; nothing is allocated but the working memory that threads keep. A row of a result depends on its own rows of
// the arguments alone: neither the number of threads nor what else is in the call changes a bit of it. Backends differ
// in the last bits. NaN and infinity pass through where nothing else is said. Throws kInvalidArgument for a size below
// 1, sizes whose product overflows, a null pointer, or a number that names nothing.
#pragma once

#include <cstdint>

#include "kvasir/types.h"

namespace kvasir {

// How weights lie in memory; the numbers are those of GGUF. All but the first two and the last hold blocks of 32 or 256
// neighbouring weights of a row: small integers, with scales for parts of a block.
enum class WeightType : int {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ2_XXS = 16,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
};

// Bytes of a row of `inputs` weights, which must be whole blocks. Throws kInvalidArgument for other types.
int64_t weight_row_bytes(WeightType type, int64_t inputs);

// out[t][o] = sum over i of in[t][i] * weights[o][i], plus bias[o].
//
//   in       [tokens][inputs]
//   weights  [outputs][inputs] in their type, at any alignment; read in place
//   bias     [outputs], or null
//   out      [tokens][outputs]; overlaps nothing
//
// Weights that are floats are widened to float32 and sums are float32: off by at most (inputs + 3) * 2^-24 * (|bias| +
// sum of |in * weight|). With AMX and 320 inputs or more, weights in bfloat16 meet activations as pairs of bfloat16,
// each off by 2^-16 of itself, which keeps that; numbers below 2^-110 may count as 0 there, and an infinite weight
// makes NaN.
//
// Weights in blocks are multiplied as the integers that they are, with activations as 8-bit integers: each 32
// neighbours of `in` have a scale, a 127th of the largest, and are off by at most half of it. That is what the result
// is off by, beside (inputs / 8 + 10) * 2^-24 of the magnitudes for float32 sums. NaN and infinity among `in` make NaN;
// 32 neighbours below 2^-100 are 0.
void project(const float* in, const uint8_t* weights, WeightType type, const float* bias, int64_t tokens,
             int64_t outputs, int64_t inputs, float* out);

// out[t] = row ids[t] of weights [rows][width], widened. Throws where an id is none of the rows.
void embed(const int* ids, int64_t tokens, const uint8_t* weights, WeightType type, int64_t rows, int64_t width,
           float* out);

// out[r][i] = in[r][i] / sqrt(mean over i of in[r][i]^2 + epsilon) * weight[i]; `out` may be `in`.
void rms_norm(const float* in, const float* weight, double epsilon, int64_t rows, int64_t width, float* out);

// The cosines and sines by which RoPE turns tokens at these positions, multiplied by `magnitude` (YaRN's factor, else
// 1): turns [tokens][2][head_dim / 2], for rope_turn. Angles are products in double precision.
void rope_turns(const double* frequencies, int head_dim, double magnitude, const int* positions, int64_t tokens,
                float* turns);

// Turns rows [tokens][heads][head_dim] in place.
void rope_turn(const float* turns, int64_t tokens, int heads, int head_dim, RopePairs pairs, float* rows);

// out[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + e^-x); `out` may be `gate` or `up`.
void swiglu(const float* gate, const float* up, int64_t count, float* out);

// out[i] += in[i].
void add_rows(const float* in, int64_t count, float* out);

}  // namespace kvasir
