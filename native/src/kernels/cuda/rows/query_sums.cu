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

__global__ void __launch_bounds__(kThreads) clear_queries(int channels, double* sums, float* known) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= channels) return;
  sums[i] = 0.0;
  known[i] = 1.0f;
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
}

__device__ __forceinline__ float mean_of(double sum, int64_t queries) {
  return static_cast<float>(fmin(sum / static_cast<double>(queries), static_cast<double>(FLT_MAX)));
}

__global__ void __launch_bounds__(kThreads) read_means(int channels, const double* sums, const float* known,
                                                       int64_t queries, const float* scaling, float* means) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= channels) return;
  const float mean = queries > 0 ? mean_of(sums[i], queries) : known == nullptr ? 1.0f : known[i];
  means[i] = scaling == nullptr ? mean : fminf(mean * scaling[i], FLT_MAX);
}

__global__ void __launch_bounds__(kThreads) end_window(int channels, double* sums, float* known, int64_t queries) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= channels) return;
  known[i] = mean_of(sums[i], queries);
  sums[i] = 0.0;
}

int blocks_for(const QueryShape& shape) { return (shape.kv_heads * shape.head_dim + kThreads - 1) / kThreads; }

}  // namespace

cudaError_t launch_clear_queries(const QueryShape& shape, double* sums, float* known, cudaStream_t stream) {
  clear_queries<<<blocks_for(shape), kThreads, 0, stream>>>(shape.kv_heads * shape.head_dim, sums, known);
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

cudaError_t launch_read_query_means(const QueryShape& shape, const double* sums, const float* known, int64_t queries,
                                    const float* scaling, float* means, cudaStream_t stream) {
  read_means<<<blocks_for(shape), kThreads, 0, stream>>>(shape.kv_heads * shape.head_dim, sums, known, queries, scaling,
                                                         means);
  return cudaGetLastError();
}

cudaError_t launch_settle_queries(const QueryShape& shape, double* sums, float* known, int64_t queries,
                                  cudaStream_t stream) {
  if (queries == 0) return cudaSuccess;
  end_window<<<blocks_for(shape), kThreads, 0, stream>>>(shape.kv_heads * shape.head_dim, sums, known, queries);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
