// Values that all lanes of a warp share, so that the compiler knows it: they and what follows from them take uniform
// registers, of which there are enough, and branches on them need no vote and no joining.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace kvasir::cuda {

// The same in all lanes, which are all here.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }
__device__ __forceinline__ uint32_t uniform(uint32_t value) { return __shfl_sync(0xffffffffu, value, 0); }
__device__ __forceinline__ uint64_t uniform(uint64_t value) {
  return __shfl_sync(0xffffffffu, static_cast<unsigned long long>(value), 0);
}

// Of this warp in its block.
__device__ __forceinline__ int warp_index() { return uniform(static_cast<int>(threadIdx.x / 32)); }

// Whether any lane has the condition.
__device__ __forceinline__ bool any_lane(bool condition) { return __any_sync(0xffffffffu, condition) != 0; }

}  // namespace kvasir::cuda
