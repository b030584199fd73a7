#include <cmath>

#include "kernels/cuda/commvq/gather.h"
#include "kernels/cuda/layout/fragments.h"
#include "kernels/cuda/primitives/numbers.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kSpoilThreads = 256;

// A thread for each sequence.
__global__ void __launch_bounds__(kInlineSequences) gather(const __grid_constant__ CommVqGather gather) {
  __shared__ unsigned long long all;
  if (threadIdx.x == 0) all = 0;
  __syncthreads();
  const bool own = threadIdx.x < gather.count;
  const DeviceSequence known = own ? *gather.sequences[threadIdx.x] : DeviceSequence{};
  atomicAdd(&all, static_cast<unsigned long long>(known.page_count));
  __syncthreads();
  const bool fits = all <= static_cast<unsigned long long>(gather.pages);
  if (threadIdx.x == 0) *gather.out_of_room = fits ? 0 : 1;
  if (!own) return;
  CommVqSequence sequence = {};
  sequence.pages = reinterpret_cast<const uint8_t* const*>(known.pages);  // one shape: references are addresses
  sequence.page_count = fits ? known.page_count : 0;
  sequence.hidden_tokens = known.hidden_tokens;
  sequence.page_token = gather.sinks;
  sequence.window_token = gather.sinks + int64_t{known.page_count} * kPageTokens;
  sequence.sinks = known.sinks;
  sequence.window = known.window;
  gather.out[threadIdx.x] = sequence;
}

__global__ void __launch_bounds__(kSpoilThreads)
    spoil(const uint32_t* out_of_room, void* outputs, ElementType type, int64_t elements) {
  if (*out_of_room == 0) return;
  const int64_t stride = int64_t{gridDim.x} * kSpoilThreads;
  for (int64_t i = int64_t{blockIdx.x} * kSpoilThreads + threadIdx.x; i < elements; i += stride) {
    store_number(outputs, type, i, NAN);
  }
}

}  // namespace

cudaError_t launch_commvq_gather(const CommVqGather& request, cudaStream_t stream) {
  if (request.count < 1 || request.count > kInlineSequences) return cudaErrorInvalidValue;
  gather<<<1, kInlineSequences, 0, stream>>>(request);
  return cudaGetLastError();
}

cudaError_t launch_commvq_spoil(const uint32_t* out_of_room, void* outputs, ElementType type, int64_t elements,
                                cudaStream_t stream) {
  const int64_t blocks = (elements + kSpoilThreads - 1) / kSpoilThreads;
  spoil<<<static_cast<int>(blocks < 64 ? blocks : 64), kSpoilThreads, 0, stream>>>(out_of_room, outputs, type,
                                                                                   elements);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
