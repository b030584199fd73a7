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

}  // namespace kvasir::cuda
