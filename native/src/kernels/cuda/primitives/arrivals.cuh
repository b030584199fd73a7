// Counters by which the blocks of a launch find out who of them is the last, and merges what all have written.
#pragma once

#include <cstdint>

namespace kvasir::cuda {

// Counts the block in, and returns how many came before it. One thread, between two barriers of its block: the first
// made the block's writes its own to publish; what other blocks published becomes its own, and with the second barrier
// the block's.
__device__ __forceinline__ uint32_t count_arrival(uint32_t* arrivals) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(arrivals))
               : "memory");
  return before;
}

// All threads of a block, whose writes are done: whether it is the last of `blocks`. The counter is 0 again then. room:
// in shared memory, which nothing else uses.
__device__ __forceinline__ bool arrives_last(uint32_t* arrivals, uint32_t blocks, int* room) {
  __syncthreads();
  if (threadIdx.x == 0) {
    *room = count_arrival(arrivals) == blocks - 1 ? 1 : 0;
    if (*room != 0) *arrivals = 0;  // for the next launch
  }
  __syncthreads();
  return *room != 0;
}

}  // namespace kvasir::cuda
