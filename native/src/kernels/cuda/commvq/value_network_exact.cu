// The network of a ValueEncoder on the device. Compiled without contraction (CMakeLists.txt).
#include "kernels/cuda/commvq/value_parts.h"
#include "kernels/cuda/primitives/in_order_product.cuh"
#include "kernels/cuda/rows/staged_tokens.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kWarps = 8;

// Scaled, of length 1, of mean 0 and variance 1, then weighted: a warp for each token.
__global__ void __launch_bounds__(32 * kWarps)
    standardise(StagedTokens tokens, int64_t count, commvq::ValueNetwork network, float* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= count) return;
  const int width = tokens.kv_heads * tokens.head_dim;
  float* const row = out + token * width;
  double square = 0.0, sum = 0.0;
  const auto scaled = [&](float value, float scale) {
    const float x = value / scale;
    square += static_cast<double>(x) * static_cast<double>(x);
    sum += static_cast<double>(x);
    return x;
  };
  tokens.for_quads(token, lane, [&](int first, const float4& four) {
    const auto scale = __ldg(reinterpret_cast<const float4*>(network.scale + first));
    *reinterpret_cast<float4*>(row + first) =
        make_float4(scaled(four.x, scale.x), scaled(four.y, scale.y), scaled(four.z, scale.z), scaled(four.w, scale.w));
  });
  square = sum_over_warp(square);
  // A row of zeros has no direction: it stays 0.
  const double length = square > 0.0 ? sqrt(square) : 1.0, mean = sum_over_warp(sum) / length / width;
  __syncwarp();
  double variance = 0.0;
  for (int i = lane; i < width; i += 32) {
    const double x = static_cast<double>(row[i]) / length - mean;
    variance += x * x;
  }
  const double deviation = sqrt(sum_over_warp(variance) / width + 1e-5);
  for (int i = lane; i < width; i += 32) {
    const auto x = static_cast<float>((static_cast<double>(row[i]) / length - mean) / deviation);
    row[i] = x * network.norm_weight[i] + network.norm_bias[i];
  }
}

__device__ __forceinline__ float4 plus(const float4& x, const float4& y) {
  return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

// x * P(normal variable <= x).
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

struct StoreHidden {
  float* out;
  int64_t stride;
  const float* bias;

  __device__ __forceinline__ void operator()(int64_t row, int column, const float4& four) const {
    const float4 x = plus(four, __ldg(reinterpret_cast<const float4*>(bias + column)));
    *reinterpret_cast<float4*>(out + row * stride + column) = make_float4(gelu(x.x), gelu(x.y), gelu(x.z), gelu(x.w));
  }
};

// The largest of four logits, the first of equals, gives two bits.
struct StoreClass {
  uint32_t* bits;  // 0 before
  int64_t words;
  const float* bias;

  __device__ __forceinline__ void operator()(int64_t row, int column, const float4& four) const {
    const float4 logits = plus(four, __ldg(reinterpret_cast<const float4*>(bias + column)));
    uint32_t both = 1;
    float largest = logits.x;
    if (logits.y > largest) both = 2, largest = logits.y;
    if (logits.z > largest) both = 3, largest = logits.z;
    if (logits.w > largest) both = 0;
    const int code = column / 2;
    if (both != 0) atomicOr(bits + row * words + code / 32, both << code % 32);
  }
};

}  // namespace

cudaError_t run_value_network(const ValueSearch& search, const uint16_t* rows, int64_t head_elements, int64_t tokens,
                              const ValueScratch& scratch, cudaStream_t stream) {
  const commvq::ValueNetwork& network = search.network;
  const int width = search.width(), hidden = network.hidden, logits = 2 * search.page.codes;
  const size_t bit_bytes = sizeof(uint32_t) * static_cast<size_t>(tokens * scratch.words);
  cudaError_t error = cudaMemsetAsync(scratch.bits, 0, bit_bytes, stream);
  if (error != cudaSuccess) return error;
  const StagedTokens staged = {rows, head_elements, search.kv_heads, search.head_dim};
  const auto blocks = static_cast<unsigned>((tokens + kWarps - 1) / kWarps);
  standardise<<<blocks, 32 * kWarps, 0, stream>>>(staged, tokens, network, scratch.sums);
  error = in_order_product(FloatMatrix{scratch.sums, width}, tokens, FloatMatrix{network.first_weight, width}, hidden,
                           width, StoreHidden{scratch.hidden, hidden, network.first_bias}, stream);
  if (error != cudaSuccess) return error;
  return in_order_product(FloatMatrix{scratch.hidden, hidden}, tokens, FloatMatrix{network.second_weight, hidden},
                          logits, hidden, StoreClass{scratch.bits, scratch.words, network.second_bias}, stream);
}

}  // namespace kvasir::cuda
