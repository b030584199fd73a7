#include <cfloat>

#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/rows/query_sums.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTokensAtOnce = 8;  // whose loads are under way together

__device__ __forceinline__ float finite_magnitude(const void* queries, ElementType type, int64_t index) {
  const uint32_t bits = __float_as_uint(load_number(queries, type, index)) & 0x7fffffffu;
  return __uint_as_float(bits < 0x7f800000u ? bits : 0);
}

__host__ __device__ __forceinline__ float* known_of(double* sums, int channels) {
  return reinterpret_cast<float*>(sums + channels);
}
__host__ __device__ __forceinline__ int64_t* count_of(double* sums, int channels) {
  return reinterpret_cast<int64_t*>(known_of(sums, channels) + channels);
}

__global__ void __launch_bounds__(kThreads) clear_queries(int channels, double* sums) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= channels) return;
  sums[i] = 0.0;
  known_of(sums, channels)[i] = 1.0f;
  if (i == 0) *count_of(sums, channels) = 0;
}

// A thread takes one channel of a kv head, and all tokens in order.
__global__ void __launch_bounds__(kThreads)
    add_queries(QueryShape shape, const void* queries, ElementType type, int64_t tokens, int64_t sequence,
                const __grid_constant__ PageList<double> sums) {
  const int channel = blockIdx.x * kThreads + threadIdx.x, d = shape.head_dim;
  if (channel >= shape.kv_heads * d) return;
  const int64_t row = static_cast<int64_t>(shape.kv_heads) * shape.group * d;  // of a token
  const int64_t first =
      (sequence + blockIdx.y) * tokens * row + static_cast<int64_t>(channel / d) * shape.group * d + channel % d;
  double* const to = sums.pages[blockIdx.y] + channel;
  double sum = *to;
  for (int64_t base = 0; base < tokens; base += kTokensAtOnce) {
    float of_group[kTokensAtOnce];
#pragma unroll
    for (int i = 0; i < kTokensAtOnce; ++i) {
      of_group[i] = 0.0f;
      if (base + i >= tokens) continue;
      for (int r = 0; r < shape.group; ++r) {
        of_group[i] += finite_magnitude(queries, type, first + (base + i) * row + static_cast<int64_t>(r) * d);
      }
    }
#pragma unroll
    for (int i = 0; i < kTokensAtOnce; ++i) sum += static_cast<double>(of_group[i]);
  }
  *to = sum;
  if (channel == 0) *count_of(sums.pages[blockIdx.y], shape.kv_heads * d) += tokens * shape.group;
}

__device__ __forceinline__ float mean_of(double sum, int64_t queries) {
  return static_cast<float>(fmin(sum / static_cast<double>(queries), static_cast<double>(FLT_MAX)));
}

__global__ void __launch_bounds__(kThreads) read_means(int channels, double* sums, const float* scaling, float* means) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= channels) return;
  float mean = 1.0f;
  if (sums != nullptr) {
    const int64_t count = *count_of(sums, channels);
    mean = count > 0 ? mean_of(sums[i], count) : known_of(sums, channels)[i];
  }
  means[i] = scaling == nullptr ? mean : fminf(mean * scaling[i], FLT_MAX);
}

__global__ void __launch_bounds__(kThreads) end_window(int channels, double* sums) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  const int64_t count = *count_of(sums, channels);
  if (i >= channels || count == 0) return;
  known_of(sums, channels)[i] = mean_of(sums[i], count);
  sums[i] = 0.0;
}

int blocks_for(const QueryShape& shape) { return (shape.kv_heads * shape.head_dim + kThreads - 1) / kThreads; }

}  // namespace

cudaError_t launch_clear_queries(const QueryShape& shape, double* sums, cudaStream_t stream) {
  clear_queries<<<blocks_for(shape), kThreads, 0, stream>>>(shape.kv_heads * shape.head_dim, sums);
  return cudaGetLastError();
}

cudaError_t launch_add_queries(const QueryShape& shape, const void* queries, ElementType type, int64_t tokens,
                               int count, double* const* sums, cudaStream_t stream) {
  if (tokens <= 0 || count <= 0) return cudaSuccess;
  return for_page_lists(sums, count, [&](const PageList<double>& list, int taken, int64_t first) {
    add_queries<<<dim3(blocks_for(shape), taken), kThreads, 0, stream>>>(shape, queries, type, tokens, first, list);
    return cudaGetLastError();
  });
}

cudaError_t launch_read_query_means(const QueryShape& shape, const double* sums, const float* scaling, float* means,
                                    cudaStream_t stream) {
  read_means<<<blocks_for(shape), kThreads, 0, stream>>>(shape.kv_heads * shape.head_dim, const_cast<double*>(sums),
                                                         scaling, means);
  return cudaGetLastError();
}

cudaError_t launch_settle_queries(const QueryShape& shape, double* sums, cudaStream_t stream) {
  const int channels = shape.kv_heads * shape.head_dim;
  end_window<<<blocks_for(shape), kThreads, 0, stream>>>(channels, sums);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  // Not by the kernel: blocks of it still read the count while others have ended.
  return cudaMemsetAsync(count_of(sums, channels), 0, sizeof(int64_t), stream);
}

}  // namespace kvasir::cuda
