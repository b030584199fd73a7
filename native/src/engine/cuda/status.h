// What CUDA says, as errors of the library.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kvasir/error.h"

namespace kvasir::cuda {

// `what` was being done.
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next launch would be blamed for it; a failure that lasts is told again
  if (status == cudaErrorMemoryAllocation) {
    throw Error(ErrorCode::kOutOfMemory, std::string("the device has no memory left for ") + what);
  }
  throw Error(ErrorCode::kDeviceFailed,
              std::string(what) + ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status));
}

// Makes a device current, and the one before it again at the end.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    check(cudaGetDevice(&before_), "asking for the current device");
    if (before_ == device) return;
    check(cudaSetDevice(device), "choosing the device");
    changed_ = true;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace kvasir::cuda
