// What stands between two products, and at the end of the last.
#include <cmath>

#include "kernels/cuda/model/operations.h"
#include "kernels/cuda/model/product_rows.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 1024;  // of a block that takes a row

template <bool kExact>
__global__ void __launch_bounds__(kThreads)
    swiglu(const void* product, const float* bias, int64_t rows, int64_t width, void* out) {
  const int64_t all = rows * width;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < all; i += gridDim.x * int64_t{kThreads}) {
    const int64_t column = i % width, at = i / width * 2 * width + column;
    float gate = from_product<kExact>(product, at, 2 * all), up = from_product<kExact>(product, at + width, 2 * all);
    if (bias != nullptr) {
      gate += bias[column];
      up += bias[width + column];
    }
    to_product<kExact>(out, i, all, gate / (1.0f + expf(-gate)) * up);
  }
}

template <bool kExact>
__global__ void __launch_bounds__(kThreads) into_product(const float* in, int64_t all, void* out) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < all; i += gridDim.x * int64_t{kThreads}) {
    to_product<kExact>(out, i, all, in[i]);
  }
}

template <bool kExact>
__global__ void __launch_bounds__(kThreads) out_of_product(const void* product, int64_t all, float* out) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < all; i += gridDim.x * int64_t{kThreads}) {
    out[i] = from_product<kExact>(product, i, all);
  }
}

// Higher, or as high and earlier. Nothing is lower than NaN; index -1 stands for nothing yet.
__device__ __forceinline__ bool better(float value, int64_t index, float than, int64_t its_index) {
  return value > than || (value == than && index < its_index) || (its_index < 0 && !isnan(value));
}

// A block takes a row; several loads of each thread are under way together.
__global__ void __launch_bounds__(kRowThreads) argmax(const float* in, int64_t rows, int64_t width, int* out) {
  __shared__ float values[kRowThreads / 32];
  __shared__ int64_t indices[kRowThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* from = in + row * width;
    float best = -INFINITY;
    int64_t where = -1;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < width; i += kRowThreads) {
      const float value = from[i];
      if (better(value, i, best, where)) {
        best = value;
        where = i;
      }
    }
    const auto merge = [&](float value, int64_t index) {
      if (index >= 0 && better(value, index, best, where)) {
        best = value;
        where = index;
      }
    };
    for (int step = 16; step > 0; step /= 2) {
      const float value = __shfl_xor_sync(0xffffffffu, best, step);
      merge(value, __shfl_xor_sync(0xffffffffu, where, step));
    }
    if (lane == 0) {
      values[warp] = best;
      indices[warp] = where;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < kRowThreads / 32; ++w) merge(values[w], indices[w]);
      out[row] = where >= 0 && isfinite(best) ? static_cast<int>(where) : -1;
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_swiglu(const void* product, const float* bias, int64_t rows, int64_t width, Precision precision,
                          void* out, cudaStream_t stream) {
  const auto kernel = precision == Precision::kExact ? swiglu<true> : swiglu<false>;
  kernel<<<grid_of(rows * width, kThreads), kThreads, 0, stream>>>(product, bias, rows, width, out);
  return cudaGetLastError();
}

cudaError_t launch_to_product(const float* in, int64_t rows, int64_t width, Precision precision, void* out,
                              cudaStream_t stream) {
  const auto kernel = precision == Precision::kExact ? into_product<true> : into_product<false>;
  kernel<<<grid_of(rows * width, kThreads), kThreads, 0, stream>>>(in, rows * width, out);
  return cudaGetLastError();
}

cudaError_t launch_from_product(const void* product, int64_t rows, int64_t width, Precision precision, float* out,
                                cudaStream_t stream) {
  const auto kernel = precision == Precision::kExact ? out_of_product<true> : out_of_product<false>;
  kernel<<<grid_of(rows * width, kThreads), kThreads, 0, stream>>>(product, rows * width, out);
  return cudaGetLastError();
}

cudaError_t launch_argmax(const float* in, int64_t rows, int64_t width, int* out, cudaStream_t stream) {
  argmax<<<grid_of(rows, 1), kRowThreads, 0, stream>>>(in, rows, width, out);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
