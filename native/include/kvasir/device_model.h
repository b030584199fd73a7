// What a model on a GPU needs beside attention (cache.h) and products, which are a matter of cuBLAS: model.h on the
// device.
//
// Plain functions on row-major arrays in memory of the current device, dense, aligned to 16 bytes, in the order of a
// stream (a cudaStream_t; null is the default one). They return before the work is done, allocate nothing and wait for
// nothing, so they can be captured in a CUDA graph. A row of a result depends on its own rows of the arguments alone.
// NaN and infinity pass through. Throw kInvalidArgument for a size below 1, sizes whose product overflows or a null
// pointer, kUnavailable in a library without CUDA, kDeviceFailed where the device refuses. What lies behind an address
// is for the caller to know.
//
// Rows that go into a product, and rows that come out of one, look as the precision wants it:
//
//   kFast   bfloat16 both ways
//   kExact  in: each number as two bfloat16 that add up to it but for 2^-16 of it. All rows of the upper parts, then
//           all rows of the lower ones: [2][rows][width], twice as many rows for a product with bfloat16 weights.
//           Out: float32, [2][rows][width], whose sums are the result
//
// A bias, where there is one, is float32, [width], and added to what came out of a product; null: none.
#pragma once

#include <cstdint>

#include "kvasir/types.h"

namespace kvasir {

// out[t] = row ids[t] of bfloat16 weights [..][width], as float32. ids: [rows] int, which nobody checks.
void device_embed(const void* ids, int64_t rows, const void* weights, int64_t width, void* out, void* stream);

// out[i] = row from[i] of `in`; float32. from: [rows] int.
void device_gather(const void* in, const void* from, int64_t rows, int64_t width, void* out, void* stream);

// out = rms_norm of `in` [rows][width], float32, by `weight` [width], float32; for a product.
void device_rms_norm(const void* in, const void* weight, double epsilon, int64_t rows, int64_t width,
                     Precision precision, void* out, void* stream);

// state += product, float32; then, unless `weight` is null, out = rms_norm of the state, for a product.
void device_add(const void* product, const void* bias, void* state, const void* weight, double epsilon, int64_t rows,
                int64_t width, Precision precision, void* out, void* stream);

// rope_turns of model.h. frequencies: [head_dim / 2] double; positions: [tokens] int; turns: float32.
void device_rope_turns(const void* frequencies, int head_dim, double magnitude, const void* positions, int64_t tokens,
                       void* turns, void* stream);

// Takes a product [rows][(query_heads + 2 * kv_heads) * head_dim], queries, keys, values, apart: norms heads of queries
// and keys by weights [head_dim], float32, null: not; turns them, keys only if `turn_keys`; and rounds them. queries
// [rows][query_heads][head_dim] become float32 for kExact, else bfloat16; keys and values [rows][kv_heads][head_dim]
// float16, which is what caches hold: magnitudes beyond it become infinite, and caches refuse those.
void device_heads(const void* product, const void* bias, const void* query_norm, const void* key_norm, double epsilon,
                  const void* turns, int64_t rows, int query_heads, int kv_heads, int head_dim, RopePairs pairs,
                  bool turn_keys, Precision precision, void* queries, void* keys, void* values, void* stream);

// out [rows][width] = silu(gate) * up, for a product; gate and up stand side by side: [rows][2 * width].
void device_swiglu(const void* product, const void* bias, int64_t rows, int64_t width, Precision precision, void* out,
                   void* stream);

// float32 rows for a product, and float32 rows from one; for kExact the latter's `out` may be its product.
void device_to_product(const void* in, int64_t rows, int64_t width, Precision precision, void* out, void* stream);
void device_from_product(const void* product, int64_t rows, int64_t width, Precision precision, void* out,
                         void* stream);

// out[r], int: where the highest of in[r], float32, stands, the first of equals; NaN is below all. -1 where the highest
// is not finite.
void device_argmax(const void* in, int64_t rows, int64_t width, void* out, void* stream);

// Random numbers, uniform, of mean 0 and this standard deviation; the same for the same seed.
void device_random(uint64_t seed, double deviation, int64_t count, ElementType type, void* out, void* stream);

}  // namespace kvasir
