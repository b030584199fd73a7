#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/rows/strided_rows.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;

// One of [tokens][heads][width], here and there.
__global__ void __launch_bounds__(kThreads) copy_strided(RowExtent extent, RowsView from, MutableRowsView to) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i >= extent.tokens * extent.heads * extent.width) return;
  const int64_t row = i / extent.width, token = row / extent.heads, head = row % extent.heads, c = i % extent.width;
  const float number = load_number(from.data, from.type, token * from.token_stride + head * from.head_stride + c);
  store_number(to.data, to.type, token * to.token_stride + head * to.head_stride + c, number);
}

cudaError_t launch_copy(const RowExtent& extent, const RowsView& from, const MutableRowsView& to, cudaStream_t stream) {
  const int64_t count = extent.tokens * extent.heads * extent.width;
  if (count <= 0) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  copy_strided<<<blocks, kThreads, 0, stream>>>(extent, from, to);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_gather_rows(const RowExtent& extent, const RowsView& from, void* to, ElementType type,
                               cudaStream_t stream) {
  return launch_copy(extent, from, {to, type, int64_t{extent.heads} * extent.width, extent.width}, stream);
}

cudaError_t launch_scatter_rows(const RowExtent& extent, const void* from, ElementType type, const MutableRowsView& to,
                                cudaStream_t stream) {
  return launch_copy(extent, {from, type, int64_t{extent.heads} * extent.width, extent.width}, to, stream);
}

}  // namespace kvasir::cuda
