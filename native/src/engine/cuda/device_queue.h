// Where the work of one engine happens: its memory, the stream that keeps the order, and copies in that order.
#pragma once

#include <vector>

#include "engine/cuda/device_arena.h"
#include "engine/cuda/status.h"
#include "engine/cuda/workspaces.h"

namespace kvasir::cuda {

struct DeviceQueue {
  DeviceArena& arena;
  cudaStream_t stream;
  Workspaces& workspaces;

  DeviceScratch take(size_t bytes) const { return DeviceScratch(arena, bytes); }

  // `what` was being copied. Memory of this machine has been read when this returns.
  void upload(void* to, const void* from, size_t bytes, const char* what) const {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), what);
  }
  DeviceScratch uploaded(const void* from, size_t bytes, const char* what) const {
    DeviceScratch memory = take(bytes);
    upload(memory.as<void>(), from, bytes, what);
    return memory;
  }
  template <class T>
  DeviceScratch uploaded(const std::vector<T>& elements, const char* what) const {
    return uploaded(elements.data(), elements.size() * sizeof(T), what);
  }
  // Waits for all that was asked for before.
  void download(void* to, const void* from, size_t bytes, const char* what) const {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), what);
    check(cudaStreamSynchronize(stream), what);
  }
};

}  // namespace kvasir::cuda
