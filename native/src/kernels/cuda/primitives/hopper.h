// Whether kernels for Hopper alone (sm_90a) can run. What compiles calls of them is compiled with KVASIR_HOPPER where
// they are part of the library.
#pragma once

#include <cuda_runtime_api.h>

namespace kvasir::cuda {

// Of the current device.
inline bool on_hopper() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
}

}  // namespace kvasir::cuda
