// In place, one block works through a page from front to back. A vector of the smaller page never lies behind what it
// is made of, so what a block has yet to read is never where it writes, provided that all threads have read before any
// of them writes.
#include <algorithm>

#include "kernels/cuda/shrink.h"
#include "kernels/cuda/shrink_step.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kInPlaceThreads = 512;
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

__global__ void __launch_bounds__(kInPlaceThreads) shrink_in_place(const __grid_constant__ Params params) {
  uint8_t* const page = params.pages[blockIdx.x].to;
  uint32_t vector = threadIdx.x;
  Moving moving = {};
  if (vector < params.plan.vectors) moving = load_vector(params.plan, page, vector);
  for (uint32_t begin = 0; begin < params.plan.vectors; begin += kInPlaceThreads) {
    const uint32_t next = vector + kInPlaceThreads;
    __syncthreads();
    Moving ahead = {};
    if (next < params.plan.vectors) ahead = load_vector(params.plan, page, next);
    if (vector < params.plan.vectors) store_vector(page, vector, moving);
    moving = ahead;
    vector = next;
  }
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
    if (in_place != 0) {
      shrink_in_place<<<count, kInPlaceThreads, 0, stream>>>(params);
    } else {
      constexpr int kPerBlock = kThreads * kVectorsPerThread;
      shrink_apart<<<dim3((params.plan.vectors + kPerBlock - 1) / kPerBlock, count), kThreads, 0, stream>>>(params);
    }
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace kvasir::cuda
