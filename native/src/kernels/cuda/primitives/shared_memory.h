// How much shared memory blocks can have.
#pragma once

#include <cuda_runtime_api.h>

namespace kvasir::cuda {

// The most that a block of the current device can have. It is also what a kernel must be allowed where launches of
// different sizes share it: what is allowed belongs to the kernel, so that the smallest launch would take it away from
// the others.
inline cudaError_t most_shared_memory(int* bytes) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

}  // namespace kvasir::cuda
