// Matrix products, as verbs that a backend supplies. matrix.cc cuts a product into blocks and spreads them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvasir/model.h"

namespace kvasir {

// Part of out = a * b^T + bias: some rows of a with some rows of b, over the whole depth.
struct MatrixBlock {
  const float* a;  // [rows][depth]
  int64_t rows;
  const uint8_t* b;  // [columns][depth] in their type
  WeightType type;
  int64_t row_bytes;  // of b
  int64_t columns;
  int64_t depth;
  const float* bias;  // [columns] or null
  float* out;         // [rows][stride], of which `columns` are written
  int64_t stride;
};

struct MatrixKernels {
  void (*product)(const MatrixBlock& block);
  // Weights begin .. begin + count of a row as float32, both at the borders of blocks.
  void (*widen)(WeightType type, const uint8_t* row, int64_t begin, int count, float* out);
  // out[i] = silu(gate[i]) * up[i]
  void (*silu_product)(const float* gate, const float* up, size_t count, float* out);
};

// The whole product, out = a * b^T + bias, in blocks over the library's threads. Checks its arguments.
void run_product(const float* a, const uint8_t* b, WeightType type, const float* bias, int64_t rows, int64_t columns,
                 int64_t depth, float* out);

// row_bytes of `depth` weights. Throws kInvalidArgument for an unknown type or a depth that is not whole blocks.
int64_t checked_row_bytes(WeightType type, int64_t depth);

}  // namespace kvasir
