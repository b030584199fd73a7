// In place, one block works through a page from front to back, or a cluster of blocks where there are few pages. A
// vector of the smaller page never lies behind what it is made of, so what has yet to be read is never where they
// write, provided that all threads have read before any of them writes.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/pages/shrink.h"
#include "kernels/cuda/pages/shrink_step.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kInPlaceThreads = 512;
constexpr int kClusterBlocks = 8;
constexpr int kFewPages = 16;  // whose clusters all have their place at once
constexpr int kThreads = 256;
constexpr int kVectorsPerThread = 4;  // of a block that does not work in place

struct Params {
  ShrinkPage pages[kShrinksPerLaunch];
  ShrinkPlan plan;
};

__global__ void __launch_bounds__(kThreads) shrink_apart(const __grid_constant__ Params params) {
  const ShrinkPage& page = params.pages[blockIdx.y];
  const uint32_t first = blockIdx.x * (kThreads * kVectorsPerThread) + threadIdx.x;
  Moving moving[kVectorsPerThread];
#pragma unroll
  for (uint32_t i = 0; i < kVectorsPerThread; ++i) {
    if (first + i * kThreads < params.plan.vectors)
      moving[i] = load_vector(params.plan, page.from, first + i * kThreads);
  }
#pragma unroll
  for (uint32_t i = 0; i < kVectorsPerThread; ++i) {
    if (first + i * kThreads < params.plan.vectors) store_vector(page.to, first + i * kThreads, moving[i]);
  }
}

// Blocks of this cluster, and which of them this one is. Without the launch attribute a cluster is one block.
__device__ __forceinline__ uint2 cluster_place() {
  uint2 place = {1, 0};
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(place.x));
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(place.y));
#endif
  return place;
}

__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

__global__ void __launch_bounds__(kInPlaceThreads) shrink_in_place(const __grid_constant__ Params params) {
  const uint2 cluster = cluster_place();
  uint8_t* const page = params.pages[blockIdx.x / cluster.x].to;
  const uint32_t step = cluster.x * kInPlaceThreads;
  uint32_t vector = cluster.y * kInPlaceThreads + threadIdx.x;
  Moving moving = {};
  if (vector < params.plan.vectors) moving = load_vector(params.plan, page, vector);
  for (uint32_t begin = 0; begin < params.plan.vectors; begin += step) {
    const uint32_t next = vector + step;
    cluster_barrier();
    Moving ahead = {};
    if (next < params.plan.vectors) ahead = load_vector(params.plan, page, next);
    if (vector < params.plan.vectors) store_vector(page, vector, moving);
    moving = ahead;
    vector = next;
  }
}

cudaError_t launch_in_place(const Params& params, unsigned pages, cudaStream_t stream) {
  cudaFuncAttributes kernel;
  const cudaError_t error = cudaFuncGetAttributes(&kernel, shrink_in_place);
  if (error != cudaSuccess) return error;
  const bool clusters = kernel.ptxVersion >= 90 && pages <= kFewPages;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kClusterBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(clusters ? pages * kClusterBlocks : pages);
  config.blockDim = dim3(kInPlaceThreads);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = clusters ? 1 : 0;
  return cudaLaunchKernelEx(&config, shrink_in_place, params);
}

}  // namespace

cudaError_t shrink_pages(const ShrinkRequest& request, cudaStream_t stream) {
  if (request.page_count < 0) return cudaErrorInvalidValue;
  if (request.page_count == 0) return cudaSuccess;
  Params params = {};
  if (!plan_shrink(request.shape.kv_heads, request.from, request.to, &params.plan)) return cudaErrorInvalidValue;
  const ShrinkPage* const end = request.pages + request.page_count;
  const int64_t in_place = std::count_if(request.pages, end, [](const ShrinkPage& p) { return p.from == p.to; });
  if (in_place != 0 && in_place != request.page_count) return cudaErrorInvalidValue;
  for (const ShrinkPage* first = request.pages; first < end; first += kShrinksPerLaunch) {
    const auto count = static_cast<unsigned>(std::min<int64_t>(end - first, kShrinksPerLaunch));
    std::copy_n(first, count, params.pages);
    cudaError_t error = cudaSuccess;
    if (in_place != 0) {
      error = launch_in_place(params, count, stream);
    } else {
      constexpr int kPerBlock = kThreads * kVectorsPerThread;
      shrink_apart<<<dim3((params.plan.vectors + kPerBlock - 1) / kPerBlock, count), kThreads, 0, stream>>>(params);
      error = cudaGetLastError();
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace kvasir::cuda
