#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/rows/scale_queries.h"

namespace kvasir::cuda {
namespace {

__global__ void scale_queries(const void* from, void* to, ElementType type, int64_t count, int row, int group,
                              int head_dim, const float* scaling) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  const int within = static_cast<int>(i % row);
  const int kv_head = within / head_dim / group;
  const float number = load_unbranched(from, type, i);
  store_number(to, type, i, number * scaling[kv_head * head_dim + within % head_dim]);
}

}  // namespace

cudaError_t launch_scale_queries(const void* from, void* to, ElementType type, int64_t tokens, int kv_heads, int group,
                                 int head_dim, const float* scaling, cudaStream_t stream) {
  const int row = kv_heads * group * head_dim;
  const int64_t count = tokens * row;
  if (count == 0) return cudaSuccess;
  constexpr int kThreads = 256;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  scale_queries<<<blocks, kThreads, 0, stream>>>(from, to, type, count, row, group, head_dim, scaling);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
