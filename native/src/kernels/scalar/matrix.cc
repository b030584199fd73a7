#include <cmath>

#include "kernels/scalar/scalar.h"
#include "kernels/weights_inl.h"

namespace kvasir::scalar {
namespace {

struct Group {
  template <bool kMinimum>
  static void widen(const int8_t* codes, float scale, float minimum, float* out) {
    for (int i = 0; i < kCodeGroup; ++i) {
      const float value = scale * static_cast<float>(codes[i]);
      out[i] = kMinimum ? value - minimum : value;
    }
  }
};

// Weights are widened so many at a time: a multiple of every block.
constexpr int kDepth = 1024;

void product(const MatrixBlock& block) {
  float weights[kDepth];
  for (int64_t c = 0; c < block.columns; ++c) {
    for (int64_t begin = 0; begin < block.depth; begin += kDepth) {
      const int depth = static_cast<int>(block.depth - begin < kDepth ? block.depth - begin : kDepth);
      widen_blocks<Group>(block.type, block.b + c * block.row_bytes, begin, depth, weights);
      for (int64_t r = 0; r < block.rows; ++r) {
        const float* a = block.a + r * block.depth + begin;
        float* out = block.out + r * block.stride + c;
        float sum = begin != 0 ? *out : block.bias ? block.bias[c] : 0.0f;
        for (int i = 0; i < depth; ++i) sum += a[i] * weights[i];
        *out = sum;
      }
    }
  }
}

void silu_product(const float* gate, const float* up, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

}  // namespace

const MatrixKernels matrix_kernels = {product, widen_blocks<Group>, silu_product};

}  // namespace kvasir::scalar
