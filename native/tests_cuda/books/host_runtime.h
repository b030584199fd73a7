// A CUDA runtime in the memory of this machine, for what engine/cuda keeps in its books: copies happen at once, there
// are no kernels, and calls fail when they are told to.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace host_runtime {

struct State {
  int allocations = 0;        // alive
  int allocations_left = -1;  // before the next one is refused; negative: none is
  // Calls that break what another thread records, unless this thread's mode is relaxed.
  int unsafe_calls = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  cudaError_t last = cudaSuccess;
};
State& state();

}  // namespace host_runtime
