// Device memory of the benchmarks, and how they check what CUDA says.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define CUDA(call)                                                                                    \
  do {                                                                                                \
    const cudaError_t status = (call);                                                                \
    if (status != cudaSuccess) {                                                                      \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status)); \
      std::exit(3);                                                                                   \
    }                                                                                                 \
  } while (false)

namespace bench {

// The name of the device that is timed.
inline std::string device_name() {
  cudaDeviceProp properties;
  CUDA(cudaGetDeviceProperties(&properties, 0));
  return properties.name;
}

// Whatever is taken of it, it frees in the end.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() {
    for (void* pointer : owned_) cudaFree(pointer);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  template <class T>
  T* take(size_t count) {
    void* pointer = nullptr;
    CUDA(cudaMalloc(&pointer, count * sizeof(T)));
    owned_.push_back(pointer);
    return static_cast<T*>(pointer);
  }
  template <class T>
  T* copy(const std::vector<T>& values) {
    T* to = take<T>(values.size());
    CUDA(cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
  }

 private:
  std::vector<void*> owned_;
};

}  // namespace bench
