// What reads and writes the residual state, float32 rows: embedding, sums, norms.
#include "kernels/cuda/model/operations.h"
#include "kernels/cuda/model/product_rows.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 1024;  // of a block that takes a row
constexpr int kTogether = 4;       // loads of a thread that are under way together

__global__ void __launch_bounds__(kThreads)
    embed(const int* ids, const uint16_t* weights, int64_t all, int64_t width, float* out) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < all; i += gridDim.x * int64_t{kThreads}) {
    out[i] = load_number(weights, ElementType::kBFloat16, ids[i / width] * width + i % width);
  }
}

__global__ void __launch_bounds__(kThreads)
    gather(const float* in, const int* from, int64_t all, int64_t width, float* out) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < all; i += gridDim.x * int64_t{kThreads}) {
    out[i] = in[from[i / width] * width + i % width];
  }
}

// The sum over the block, for all of its threads; in an order of its own.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float sums[kRowThreads / 32];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  __syncthreads();  // sums of the row before have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < kRowThreads / 32; ++warp) sum += sums[warp];
  return sum;
}

struct RowSum {
  const void* product;  // null: nothing is added
  const float* bias;
  float* state;
  RowNorm norm;
  int64_t rows, width;
  void* out;
};

// A block takes a row. It reads the state again for the norm, from the cache that the sum has left it in.
template <bool kExact>
__global__ void __launch_bounds__(kRowThreads) add_and_norm(const __grid_constant__ RowSum sum) {
  const int64_t all = sum.rows * sum.width;
  for (int64_t row = blockIdx.x; row < sum.rows; row += gridDim.x) {
    float* state = sum.state + row * sum.width;
    float squares = 0.0f, values[kTogether];
    for (int64_t begin = threadIdx.x; begin < sum.width; begin += kTogether * kRowThreads) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int64_t i = begin + j * kRowThreads;
        values[j] = i < sum.width ? state[i] : 0.0f;
        if (sum.product == nullptr || i >= sum.width) continue;
        values[j] += from_product<kExact>(sum.product, row * sum.width + i, all);
        if (sum.bias != nullptr) values[j] += sum.bias[i];
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int64_t i = begin + j * kRowThreads;
        if (sum.product != nullptr && i < sum.width) state[i] = values[j];
        squares = fmaf(values[j], values[j], squares);
      }
    }
    if (sum.norm.weight == nullptr) continue;
    const double mean = static_cast<double>(block_sum(squares)) / static_cast<double>(sum.width);
    const float scale = static_cast<float>(1.0 / sqrt(mean + sum.norm.epsilon));
    for (int64_t begin = threadIdx.x; begin < sum.width; begin += kTogether * kRowThreads) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int64_t i = begin + j * kRowThreads;
        values[j] = i < sum.width ? state[i] * scale * sum.norm.weight[i] : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int64_t i = begin + j * kRowThreads;
        if (i < sum.width) to_product<kExact>(sum.out, row * sum.width + i, all, values[j]);
      }
    }
  }
}

cudaError_t launch_row_sum(const RowSum& sum, Precision precision, cudaStream_t stream) {
  const auto kernel = precision == Precision::kExact ? add_and_norm<true> : add_and_norm<false>;
  kernel<<<grid_of(sum.rows, 1), kRowThreads, 0, stream>>>(sum);
  return cudaGetLastError();
}

// splitmix64: a number of its own for each index.
__device__ __forceinline__ uint64_t scrambled(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

__global__ void __launch_bounds__(kThreads)
    fill_random(uint64_t seed, float range, int64_t count, ElementType type, void* out) {
  const uint64_t base = scrambled(seed);
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += gridDim.x * int64_t{kThreads}) {
    const auto bits = static_cast<uint32_t>(scrambled(base + static_cast<uint64_t>(i)) >> 40);
    store_number(out, type, i, (static_cast<float>(bits) * 0x1p-23f - 1.0f) * range);
  }
}

}  // namespace

cudaError_t launch_embed(const int* ids, int64_t rows, const uint16_t* weights, int64_t width, float* out,
                         cudaStream_t stream) {
  embed<<<grid_of(rows * width, kThreads), kThreads, 0, stream>>>(ids, weights, rows * width, width, out);
  return cudaGetLastError();
}

cudaError_t launch_gather(const float* in, const int* from, int64_t rows, int64_t width, float* out,
                          cudaStream_t stream) {
  gather<<<grid_of(rows * width, kThreads), kThreads, 0, stream>>>(in, from, rows * width, width, out);
  return cudaGetLastError();
}

cudaError_t launch_rms_norm(const float* in, const RowNorm& norm, int64_t rows, int64_t width, Precision precision,
                            void* out, cudaStream_t stream) {
  // Without a product the state is only read.
  return launch_row_sum({nullptr, nullptr, const_cast<float*>(in), norm, rows, width, out}, precision, stream);
}

cudaError_t launch_add(const void* product, const float* bias, float* state, const RowNorm& norm, int64_t rows,
                       int64_t width, Precision precision, void* out, cudaStream_t stream) {
  return launch_row_sum({product, bias, state, norm, rows, width, out}, precision, stream);
}

cudaError_t launch_random(uint64_t seed, double deviation, int64_t count, ElementType type, void* out,
                          cudaStream_t stream) {
  const auto range = static_cast<float>(deviation * 1.7320508075688772);  // uniform in -range..range
  fill_random<<<grid_of(count, 8 * kThreads), kThreads, 0, stream>>>(seed, range, count, type, out);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
