#include "books/host_runtime.h"

#include <cstdlib>
#include <cstring>
#include <memory>

#include "engine/cuda/families/family.h"
#include "kernels/cuda/rows/scatter.h"

namespace host_runtime {

State& state() {
  static State state;
  return state;
}

}  // namespace host_runtime

using host_runtime::state;

static cudaError_t said(cudaError_t status) {
  if (status != cudaSuccess) state().last = status;
  return status;
}

static void count_unsafe() { state().unsafe_calls += state().mode != cudaStreamCaptureModeRelaxed; }

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;  // that could run a kernel
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() {
  const cudaError_t last = state().last;
  state().last = cudaSuccess;
  return last;
}
const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "of the runtime in host memory"; }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  count_unsafe();
  if (state().allocations_left == 0) return said(cudaErrorMemoryAllocation);
  if (state().allocations_left > 0) --state().allocations_left;
  constexpr size_t kAlignment = 256;
  *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::memset(*memory, 0xff, bytes);
  ++state().allocations;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  count_unsafe();
  std::free(memory);
  --state().allocations;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t) {
  for (size_t row = 0; row < height; ++row) {
    std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, state().mode);
  return cudaSuccess;
}

}  // extern "C"

namespace kvasir::cuda {

// What books need of kernels: a family that is never asked, and pieces that go where they belong.
std::unique_ptr<PageFamily> make_family(const DeviceLayer&) { return nullptr; }

cudaError_t scatter(const uint64_t* words, const Piece* pieces, int count, cudaStream_t) {
  for (int i = 0; i < count; ++i) {
    std::memcpy(pieces[i].to, words + pieces[i].first, pieces[i].count * sizeof(uint64_t));
  }
  return cudaSuccess;
}

}  // namespace kvasir::cuda
