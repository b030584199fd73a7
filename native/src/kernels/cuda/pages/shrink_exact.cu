// In place, one block works through a page from front to back, or a cluster of blocks where there are few pages. A
// vector of the smaller page never lies behind what it is made of, so what has yet to be read is never where they
// write, provided that all threads have read before any of them writes.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/pages/shrink.h"
#include "kernels/cuda/pages/shrink_step.cuh"
#include "kernels/cuda/primitives/cluster.cuh"
#include "kernels/cuda/primitives/cluster_launch.h"

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

template <int kPages, bool kModifies>
__global__ void __launch_bounds__(kInPlaceThreads) shrink_in_place(const __grid_constant__ Params<kPages> params) {
  const ClusterPlace cluster = cluster_place();
  uint8_t* const page = params.pages[blockIdx.x / cluster.blocks].to;
  const uint32_t step = cluster.blocks * kInPlaceThreads;
  uint32_t vector = cluster.rank * kInPlaceThreads + threadIdx.x;
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

template <int kPages, bool kModifies>
cudaError_t launch_in_place(const Params<kPages>& params, unsigned pages, cudaStream_t stream) {
  const ClusterLaunch<Params<kPages>> launch = {shrink_in_place<kPages, kModifies>, kClusterBlocks, kInPlaceThreads, 0};
  // Asked once: the library has one device.
  static const bool clusters = kPages <= kFewPages && launch.runs();
  return launch(pages, clusters, params, stream);
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
