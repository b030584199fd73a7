// Calibration: what is learned from sample tensors of a model before a cache is configured for it.
//
//   sensitivities        how much the loss would suffer from storing a layer's keys or values at some width
//   raise ... errors     factors per channel that make keys easier to quantise (key scaling); see rope.h for RoPE
//
// Plain functions on arrays: callers walk layers and samples, and add up. Arrays are dense and row-major; tensors are
// [tokens][heads][head_dim], the last index is the channel, and pointers are borrowed for the call alone. Work runs on
// the library's threads; results do not depend on their number. Every function throws kInvalidArgument for a size that
// makes no sense, and kNotFinite, naming the element, for data that no cache would accept.
#pragma once

#include <cstdint>

#include "kvasir/types.h"

namespace kvasir {

// Sensitivities ----------------------------------------------------------------------------------------------

// sums[i] = sum over all elements of |gradient * (x - x_i)|, where x_i is what remains of x at widths[i] bits: rounded
// to float16, then quantised as by the codec "uniform" with grid 0 and this axis (0: per channel over tokens, 1: per
// token over channels) and group (32, 64, 128 or the whole dimension; 0 for the longest up to 128). Pages begin at
// token 0.
//
// rows, gradients: [tokens][kv_heads][head_dim], one side of one layer and the derivatives of the loss by its elements.
// scaling: null, or [kv_heads][head_dim] factors of key scaling: what is stored then is x / factor.
// widths: 1..16 each.
void sensitivities(const float* rows, const float* gradients, int64_t tokens, int kv_heads, int head_dim, int axis,
                   int group, const float* scaling, const int* widths, int width_count, double* sums);

// Key scaling ------------------------------------------------------------------------------------------------
//
// Keys are stored as K / lambda and queries are multiplied by lambda, so scores stay what they are while large channels
// lose their weight in the quantiser. lambda has one value for both channels of a RoPE pair, so it may be applied
// before or after RoPE, or folded into the projections.

// maxima ([kv_heads][head_dim], in and out): raised to the largest |key| of the channel or its RoPE partner.
void raise_key_maxima(const float* keys, int64_t tokens, int kv_heads, int head_dim, RopePairs pairs, float* maxima);

// lambda[i] = maxima[i]^alpha, held within 1e-4 .. 1e4; 1 where the channel is always 0. alpha: 0..1.
void scaling_factors(const float* maxima, int64_t count, double alpha, float* lambda);

// errors[c] = sum over queries, heads and channels of (o_c - o)^2, where o is causal attention over the keys as given
// and o_c over keys that were stored per token (axis 1, grid 0) at `bits` bits in groups of `group` channels after
// scaling by candidate c. *energy = sum of o^2, so that errors[c] / *energy is the normalised mean squared error.
//
// keys, values: [tokens][kv_heads][head_dim]. queries: [query_tokens][query_heads][head_dim], those of the newest
// query_tokens tokens: query i sees the keys up to tokens - query_tokens + i. candidates: [candidate_count][kv_heads]
// [head_dim]. bits: 1..16. Throws kNotFinite, too, where keys and queries are so large that float32 does not hold their
// products. Takes candidate_count * tokens * head_dim * 4 bytes of working memory.
void key_scaling_errors(const float* keys, const float* values, int64_t tokens, const float* queries,
                        int64_t query_tokens, int query_heads, int kv_heads, int head_dim, float softmax_scale,
                        int bits, int group, const float* candidates, int candidate_count, double* errors,
                        double* energy);

}  // namespace kvasir
