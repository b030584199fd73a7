// In place, one block works through a page from front to back, or a cluster of blocks where there are few pages. A
// vector of the smaller page never lies behind what it is made of, so what has yet to be read is never where they
// write, provided that all threads have read before any of them writes.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/pages/shrink.h"
#include "kernels/cuda/pages/shrink_step.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kInPlaceThreads = 1024;
constexpr int kClusterBlocks = 8;
constexpr int kFewPages = 16;  // whose clusters all have their place at once
constexpr int kThreads = 256;  // of a block that does not work in place

// Lists of few pages are not charged for the room of many.
template <int kPages>
struct Params {
  ShrinkPage pages[kPages];
  ShrinkPlan plan;
};

template <int kPages, bool kModifies>
__global__ void __launch_bounds__(kThreads) shrink_apart(const __grid_constant__ Params<kPages> params) {
  const ShrinkPage& page = params.pages[blockIdx.y];
  const uint32_t vector = blockIdx.x * kThreads + threadIdx.x;
  if (vector >= params.plan.vectors) return;
  store_vector<kModifies>(page.to, vector, load_vector<kModifies>(params.plan, page.from, vector));
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

template <int kPages, bool kModifies>
__global__ void __launch_bounds__(kInPlaceThreads) shrink_in_place(const __grid_constant__ Params<kPages> params) {
  const uint2 cluster = cluster_place();
  uint8_t* const page = params.pages[blockIdx.x / cluster.x].to;
  const uint32_t step = cluster.x * kInPlaceThreads;
  uint32_t vector = cluster.y * kInPlaceThreads + threadIdx.x;
  Moving moving = {};
  if (vector < params.plan.vectors) moving = load_vector<kModifies>(params.plan, page, vector);
  for (uint32_t begin = 0; begin < params.plan.vectors; begin += step) {
    const uint32_t next = vector + step;
    cluster_barrier();
    Moving ahead = {};
    if (next < params.plan.vectors) ahead = load_vector<kModifies>(params.plan, page, next);
    if (vector < params.plan.vectors) store_vector<kModifies>(page, vector, moving);
    moving = ahead;
    vector = next;
  }
}

// Whether clusters of the kernel have room: a device may have no eight processors that belong together.
bool runs_clusters(const void* kernel, const cudaLaunchConfig_t& config) {
  cudaFuncAttributes compiled;
  int clusters = 0;
  const bool known =
      cudaFuncGetAttributes(&compiled, kernel) == cudaSuccess &&
      (compiled.ptxVersion < 90 || cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess);
  if (!known) cudaGetLastError();  // which is an answer, and nobody's error
  return clusters > 0;
}

template <int kPages, bool kModifies>
cudaError_t launch_in_place(const Params<kPages>& params, unsigned pages, cudaStream_t stream) {
  const auto kernel = shrink_in_place<kPages, kModifies>;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kClusterBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(pages * kClusterBlocks);
  config.blockDim = dim3(kInPlaceThreads);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  // Asked once: the library has one device.
  static const bool clusters = kPages <= kFewPages && runs_clusters(reinterpret_cast<const void*>(kernel), config);
  if (!clusters) {
    config.gridDim = dim3(pages);
    config.numAttrs = 0;
  }
  return cudaLaunchKernelEx(&config, kernel, params);
}

template <int kPages, bool kModifies>
cudaError_t launch_apart(const Params<kPages>& params, unsigned pages, cudaStream_t stream) {
  const dim3 grid((params.plan.vectors + kThreads - 1) / kThreads, pages);
  shrink_apart<kPages, kModifies><<<grid, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

template <int kPages, bool kModifies>
cudaError_t shrink_lists(const ShrinkRequest& request, const ShrinkPlan& plan, bool in_place, cudaStream_t stream) {
  const ShrinkPage* const end = request.pages + request.page_count;
  for (const ShrinkPage* first = request.pages; first < end; first += kPages) {
    const auto count = static_cast<unsigned>(std::min<int64_t>(end - first, kPages));
    Params<kPages> params = {{}, plan};
    std::copy_n(first, count, params.pages);
    const auto launch = in_place ? launch_in_place<kPages, kModifies> : launch_apart<kPages, kModifies>;
    const cudaError_t error = launch(params, count, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t shrink_pages(const ShrinkRequest& request, cudaStream_t stream) {
  if (request.page_count < 0) return cudaErrorInvalidValue;
  if (request.page_count == 0) return cudaSuccess;
  ShrinkPlan plan;
  if (!plan_shrink(request.shape.kv_heads, request.from, request.to, &plan)) return cudaErrorInvalidValue;
  const int64_t in_place = std::count_if(request.pages, request.pages + request.page_count,
                                         [](const ShrinkPage& page) { return page.from == page.to; });
  if (in_place != 0 && in_place != request.page_count) return cudaErrorInvalidValue;
  const auto shrink =
      request.page_count <= kFewPages
          ? (plan.modifies ? shrink_lists<kFewPages, true> : shrink_lists<kFewPages, false>)
          : (plan.modifies ? shrink_lists<kShrinksPerLaunch, true> : shrink_lists<kShrinksPerLaunch, false>);
  return shrink(request, plan, in_place != 0, stream);
}

}  // namespace kvasir::cuda
