// What a graph needs around CommVQ's attention: descriptions of sequences as they are when it runs.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/commvq/types.h"

namespace kvasir::cuda {

struct CommVqGather {
  const DeviceSequence* sequences[kInlineSequences];  // in device memory: without a sliding window and shifts
  int count;
  int sinks;              // tokens that a sequence keeps before its pages
  int64_t pages;          // most that there is room for, of all together
  CommVqSequence* out;    // [count], in device memory
  uint32_t* out_of_room;  // becomes 1 where there are more pages, which are then left out, else 0
};
cudaError_t launch_commvq_gather(const CommVqGather& gather, cudaStream_t stream);

// After attention: where there was no room, all `elements` of the outputs become NaN.
cudaError_t launch_commvq_spoil(const uint32_t* out_of_room, void* outputs, ElementType type, int64_t elements,
                                cudaStream_t stream);

}  // namespace kvasir::cuda
