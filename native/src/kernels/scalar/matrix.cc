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

void encode(const float* values, int depth, CodedPart* out) {
  for (int begin = 0; begin < depth; begin += kScaleGroup) {
    float largest = 0, not_finite = 0;
    for (int i = begin; i < begin + kScaleGroup; ++i) {
      largest = std::fmax(largest, std::fabs(values[i]));
      not_finite += values[i] * 0.0f;  // NaN where it is NaN or infinite
    }
    const bool some = largest >= 0x1p-100f && std::isfinite(largest);
    const float inverse = some ? 127.0f / largest : 0.0f;
    const float scale = (some ? largest * (1.0f / 127) : 0.0f) + not_finite;
    out->scales[begin / kScaleGroup] = scale;
    for (int g = begin / kSumGroup; g < (begin + kScaleGroup) / kSumGroup; ++g) {
      int32_t sum = 0;
      for (int i = g * kSumGroup; i < (g + 1) * kSumGroup; ++i) {
        out->codes[i] = std::isfinite(values[i]) ? static_cast<int8_t>(std::nearbyint(values[i] * inverse)) : 0;
        sum += out->codes[i];
      }
      out->sums[g] = scale * static_cast<float>(sum);
      out->offsets[g] = -128 * sum;
    }
  }
}

template <class Blocks>
void block_product(const MatrixBlock& block) {
  Codes weights;
  for (int64_t c = 0; c < block.columns; ++c) {
    for (int64_t begin = 0; begin < block.depth; begin += kCodeBlock) {
      const int depth = static_cast<int>(block.depth - begin < kCodeBlock ? block.depth - begin : kCodeBlock);
      const uint8_t* from = block.b + c * block.row_bytes + begin / Blocks::kElements * Blocks::kBytes;
      Blocks::unpack(from, depth, &weights);
      for (int64_t r = 0; r < block.rows; ++r) {
        const CodedPart& in = block.coded[begin / kCodedDepth * block.rows + r];
        float* out = block.out + r * block.stride + c;
        float sum = begin != 0 ? *out : block.bias ? block.bias[c] : 0.0f;
        for (int g = 0; g < depth / kCodeGroup; ++g) {
          int32_t dot = 0;
          for (int i = 0; i < kCodeGroup; ++i) {
            dot += weights.codes[g * kCodeGroup + i] * in.codes[g * kCodeGroup + i];
          }
          sum += weights.scales[g] * static_cast<float>(dot) * in.scales[g / 2];
          if (Blocks::kMinimums) sum -= weights.minimums[g] * in.sums[g];
        }
        *out = sum;
      }
    }
  }
}

void block_product(const MatrixBlock& block) {
  with_blocks(block.type, [&](auto blocks) { block_product<decltype(blocks)>(block); });
}

void silu_product(const float* gate, const float* up, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

}  // namespace

const MatrixKernels matrix_kernels = {product,      block_product, encode, widen_blocks<Group>,
                                      silu_product, nullptr,       nullptr};

}  // namespace kvasir::scalar
