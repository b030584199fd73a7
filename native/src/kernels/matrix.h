// Matrix products, as verbs that a backend supplies. matrix.cc cuts a product into blocks and spreads them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir {

// Part of out = a * b^T + bias: some rows of a with some rows of b, over the whole depth.
struct MatrixBlock {
  const float* a;  // [rows][depth]
  int64_t rows;
  const void* b;  // [columns][depth]: float32, or bfloat16 bits
  bool bfloats;
  int64_t columns;
  int64_t depth;
  const float* bias;  // [columns] or null
  float* out;         // [rows][stride], of which `columns` are written
  int64_t stride;
};

struct MatrixKernels {
  void (*product)(const MatrixBlock& block);
  // out[i] = silu(gate[i]) * up[i]
  void (*silu_product)(const float* gate, const float* up, size_t count, float* out);
};

}  // namespace kvasir
