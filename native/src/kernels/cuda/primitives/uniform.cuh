// Values that are the same in all lanes of a warp, made known to be so.
//
// The compiler cannot see that threadIdx.x / 32, or what all lanes load from one address, is the same in all of them.
// It knows it of a value that comes from lane 0: what follows from that is computed once for the warp, in registers
// that it has besides those of lanes, and branches on it need no care for lanes that go another way.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace kvasir::cuda {

// A whole warp, all lanes of which have the same value.
template <class Number>
__device__ __forceinline__ Number uniform(Number x) {
  return __shfl_sync(0xffffffffu, x, 0);
}
template <class Element>
__device__ __forceinline__ Element* uniform(Element* pointer) {
  return reinterpret_cast<Element*>(uniform(reinterpret_cast<unsigned long long>(pointer)));
}

// The number of this warp in its block.
__device__ __forceinline__ int warp_index() { return uniform(static_cast<int>(threadIdx.x) / 32); }

// Whether any lane has the condition.
__device__ __forceinline__ bool any_lane(bool condition) { return __any_sync(0xffffffffu, condition) != 0; }

}  // namespace kvasir::cuda
