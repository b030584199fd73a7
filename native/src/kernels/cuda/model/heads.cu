// From a product to queries, keys and values: norms of heads, RoPE, rounding.
#include "kernels/cuda/model/operations.h"
#include "kernels/cuda/model/product_rows.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

__global__ void __launch_bounds__(kThreads)
    rope_turns(const double* frequencies, int half, double magnitude, const int* positions, int64_t all, float* turns) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= all) return;
  const int64_t token = i / half;
  const int j = static_cast<int>(i % half);
  double sine, cosine;
  sincos(positions[token] * frequencies[j], &sine, &cosine);
  turns[token * 2 * half + j] = static_cast<float>(magnitude * cosine);
  turns[token * 2 * half + half + j] = static_cast<float>(magnitude * sine);
}

// A warp takes a head of a row; a lane, pairs of channels that turn together.
template <bool kExact>
__global__ void __launch_bounds__(kThreads) split_heads(const __grid_constant__ Heads heads) {
  const HeadShape& shape = heads.shape;
  const int half = shape.head_dim / 2, lane = threadIdx.x % 32;
  const int of_row = shape.query_heads + 2 * shape.kv_heads;
  const int64_t all = heads.rows * of_row * shape.head_dim, count = heads.rows * of_row;
  for (int64_t item = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32; item < count;
       item += gridDim.x * int64_t{kWarps}) {
    const int64_t row = item / of_row;
    const int head = static_cast<int>(item % of_row);
    const bool query = head < shape.query_heads, key = !query && head < shape.query_heads + shape.kv_heads;
    const auto load = [&](int channel) {
      const float value = from_product<kExact>(heads.product, item * shape.head_dim + channel, all);
      return heads.bias == nullptr ? value : value + heads.bias[head * shape.head_dim + channel];
    };
    const float* weight = query ? heads.query_norm : key ? heads.key_norm : nullptr;
    float scale = 1.0f;
    if (weight != nullptr) {
      float squares = 0.0f;
      for (int c = lane; c < shape.head_dim; c += 32) {
        const float value = load(c);
        squares = fmaf(value, value, squares);
      }
      for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
      scale = static_cast<float>(1.0 / sqrt(static_cast<double>(squares) / shape.head_dim + heads.epsilon));
    }
    const bool turned = query || (key && shape.turn_keys);
    const float* turns = heads.turns + row * shape.head_dim;
    const int kv_head = head - shape.query_heads - (key ? 0 : shape.kv_heads);
    const int64_t to =
        query ? (row * shape.query_heads + head) * shape.head_dim : (row * shape.kv_heads + kv_head) * shape.head_dim;
    void* out = query ? heads.queries : key ? heads.keys : heads.values;
    const ElementType type = !query ? ElementType::kFloat16 : kExact ? ElementType::kFloat32 : ElementType::kBFloat16;
    for (int j = lane; j < half; j += 32) {
      const int a = shape.pairs == RopePairs::kHalves ? j : 2 * j;
      const int b = shape.pairs == RopePairs::kHalves ? j + half : 2 * j + 1;
      float x = load(a), y = load(b);
      if (weight != nullptr) {
        x *= scale * weight[a];
        y *= scale * weight[b];
      }
      const float cosine = turned ? turns[j] : 1.0f, sine = turned ? turns[half + j] : 0.0f;
      store_number(out, type, to + a, turned ? x * cosine - y * sine : x);
      store_number(out, type, to + b, turned ? x * sine + y * cosine : y);
    }
  }
}

}  // namespace

cudaError_t launch_rope_turns(const double* frequencies, int head_dim, double magnitude, const int* positions,
                              int64_t tokens, float* turns, cudaStream_t stream) {
  const int half = head_dim / 2;
  const int64_t all = tokens * half;
  if (all > 0x7fffffffLL * kThreads) return cudaErrorInvalidValue;
  rope_turns<<<grid_of(all, kThreads), kThreads, 0, stream>>>(frequencies, half, magnitude, positions, all, turns);
  return cudaGetLastError();
}

cudaError_t launch_heads(const Heads& heads, Precision precision, cudaStream_t stream) {
  const int64_t items = heads.rows * (heads.shape.query_heads + 2 * int64_t{heads.shape.kv_heads});
  const auto kernel = precision == Precision::kExact ? split_heads<true> : split_heads<false>;
  kernel<<<grid_of(items, kWarps), kThreads, 0, stream>>>(heads);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
