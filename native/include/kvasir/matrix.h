// Dense products for models that run beside a cache, and for encoders that are small networks.
//
// Plain functions on row-major arrays, which are borrowed for the call alone. Work is spread over the library's
// threads. An element of the result depends on its own row and column of the arguments alone: neither the number of
// threads nor what else is in the call changes a bit of it. Backends differ in the last bits. NaN and infinity pass
// through. Throws kInvalidArgument for a size below 1, a product of sizes above 2^62 or a null pointer.
#pragma once

#include <cstdint>

namespace kvasir {

// out[r][c] = sum over i of a[r][i] * b[c][i], plus bias[c]: activations times the rows of a weight matrix.
//
//   a     [rows][depth]
//   b     [columns][depth]
//   bias  [columns], or null
//   out   [rows][columns]; overlaps neither a, b nor bias
//
// Sums are float32: off by at most (depth + 3) * 2^-24 * (|bias| + sum of |a * b|), as any order of adding is.
void matrix_product(const float* a, const float* b, const float* bias, int64_t rows, int64_t columns, int64_t depth,
                    float* out);

// The same with b in bfloat16 bits. Equals matrix_product on the widened elements to the last bit, and reads half the
// memory: few rows are that much faster, many rows as fast.
void matrix_product_bf16(const float* a, const uint16_t* b, const float* bias, int64_t rows, int64_t columns,
                         int64_t depth, float* out);

// The middle of a SwiGLU layer: out[r][c] = silu(gates[r][c]) * gates[r][columns + c], silu(x) = x / (1 + e^-x).
//
//   gates  [rows][2 * columns]: gate and up projection side by side
//   out    [rows][columns]; overlaps no gates
void silu_product(const float* gates, int64_t rows, int64_t columns, float* out);

}  // namespace kvasir
