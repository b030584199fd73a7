// Launches of kernels that may start before the grids before them have ended, and wait for those themselves
// (let_next_grid_start, wait_for_grids_before). It hides the time that a launch takes.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/shared_memory.h"

namespace kvasir::cuda {

template <class Params>
using Kernel = void (*)(Params);

struct LaunchShape {
  dim3 grid;
  int threads;
  int shared_bytes;
  bool overlaps;
};

// Allows the kernel so much shared memory, and says whether it can overlap: code for sm_90 and up can.
template <class Params>
cudaError_t prepare_kernel(Kernel<Params> kernel, int shared_bytes, bool* overlaps) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  if (error != cudaSuccess) return error;
  *overlaps = attributes.ptxVersion >= 90;
  return allow_shared_memory(kernel, shared_bytes);
}

template <class Params>
cudaError_t launch_kernel(Kernel<Params> kernel, const LaunchShape& shape, const Params& params, cudaStream_t stream) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = shape.overlaps ? 1 : 0;
  void* arguments[] = {const_cast<Params*>(&params)};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments);
}

}  // namespace kvasir::cuda
