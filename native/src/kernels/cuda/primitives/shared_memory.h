// How much shared memory blocks can have.
//
//   KVASIR_SHARED_MEMORY=BYTES     at most so much: what a smaller device has, for tests on a larger one. Kernels for
//                                  Hopper alone take no notice of it: they are to be left out (KVASIR_AS of
//                                  ci/test-gpu)
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>

namespace kvasir::cuda {

// The most that a block of the current device can have.
inline cudaError_t most_shared_memory(int* bytes) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  static const char* const limit = std::getenv("KVASIR_SHARED_MEMORY");
  if (error == cudaSuccess && limit != nullptr) *bytes = std::min(*bytes, std::atoi(limit));
  return error;
}

inline bool shared_memory_has(int bytes) {
  int most = 0;
  return most_shared_memory(&most) == cudaSuccess && bytes <= most;
}

// Allows launches of a kernel so much shared memory beside what it declares; refused where the device has not as much.
// What is allowed belongs to the kernel and not to a launch. So it is all that there is, or the smallest of several
// threads' launches would take it away from the others.
template <class Kernel>
cudaError_t allow_shared_memory(Kernel* kernel, int bytes) {
  int most = 0;
  cudaFuncAttributes attributes;
  const auto* const function = reinterpret_cast<const void*>(kernel);
  cudaError_t error = most_shared_memory(&most);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, function);
  if (error != cudaSuccess) return error;
  most -= static_cast<int>(attributes.sharedSizeBytes);
  if (bytes > most) return cudaErrorInvalidValue;
  if (attributes.maxDynamicSharedSizeBytes >= most) return cudaSuccess;
  return cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

}  // namespace kvasir::cuda
