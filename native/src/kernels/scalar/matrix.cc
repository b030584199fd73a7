#include <cmath>

#include "base/half.h"
#include "kernels/scalar/scalar.h"

namespace kvasir::scalar {
namespace {

void product(const MatrixBlock& block) {
  const int64_t depth = block.depth;
  for (int64_t c = 0; c < block.columns; ++c) {
    const float* floats = static_cast<const float*>(block.b) + (block.bfloats ? 0 : c * depth);
    const uint16_t* bfloats = static_cast<const uint16_t*>(block.b) + (block.bfloats ? c * depth : 0);
    for (int64_t r = 0; r < block.rows; ++r) {
      const float* a = block.a + r * depth;
      float sum = block.bias ? block.bias[c] : 0.0f;
      for (int64_t i = 0; i < depth; ++i) sum += a[i] * (block.bfloats ? bfloat_to_float(bfloats[i]) : floats[i]);
      block.out[r * block.stride + c] = sum;
    }
  }
}

void silu_product(const float* gate, const float* up, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

}  // namespace

const MatrixKernels matrix_kernels = {product, silu_product};

}  // namespace kvasir::scalar
