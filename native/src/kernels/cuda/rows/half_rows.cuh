// Numbers on their way into float16 rows.
#pragma once

#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/rows/unpack.h"

namespace kvasir::cuda {

// Float16's largest: rows that are sums may pass it.
__device__ __forceinline__ float within_halves(float x) { return fminf(fmaxf(x, -65504.0f), 65504.0f); }

// Two neighbouring channels, at an even place.
__device__ __forceinline__ void store_halves(const HalfRows& rows, int64_t at, float even, float odd) {
  const uint32_t high = floats_to_halves(within_halves(even), within_halves(odd));
  *reinterpret_cast<uint32_t*>(rows.high + at) = high;
  if (rows.low == nullptr) return;
  const float2 taken = halves_to_floats(high);
  *reinterpret_cast<uint32_t*>(rows.low + at) = floats_to_halves(__fsub_rn(even, taken.x), __fsub_rn(odd, taken.y));
}

}  // namespace kvasir::cuda
