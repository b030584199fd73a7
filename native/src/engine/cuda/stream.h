// Streams, the order between them, and words that the device writes for this machine to read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/cuda/status.h"

namespace kvasir::cuda {

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  // What is on `stream` now.
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "recording an event"); }
  // What comes next on `waiting` waits for it.
  void hold(cudaStream_t waiting) { check(cudaStreamWaitEvent(waiting, event_, 0), "waiting for an event"); }
  void order(cudaStream_t stream, cudaStream_t waiting) {
    record(stream);
    hold(waiting);
  }
  // The same where something failed already, and that is what is to be told.
  void order_anyway(cudaStream_t stream, cudaStream_t waiting) noexcept {
    if (cudaEventRecord(event_, stream) == cudaSuccess) cudaStreamWaitEvent(waiting, event_, 0);
    cudaGetLastError();
  }
  // This machine waits.
  cudaError_t wait() { return cudaEventSynchronize(event_); }

 private:
  cudaEvent_t event_ = nullptr;
};

inline bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "asking a stream");
  return status != cudaStreamCaptureStatusNone;
}

// While somebody captures, this thread may still take memory and wait for other streams.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { changed_ = cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess; }
  ~RelaxedCapture() {
    if (changed_) cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool changed_;
};

// Memory of this machine that the device reads and writes by itself.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  ~PinnedMemory() {
    const RelaxedCapture relaxed;
    cudaFreeHost(memory_);
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // At least so many bytes; what was there before is lost where they are more.
  void reserve(size_t bytes) {
    if (bytes <= bytes_) return;
    const RelaxedCapture relaxed;
    cudaFreeHost(memory_);
    memory_ = nullptr;
    bytes_ = 0;
    check(cudaHostAlloc(&memory_, bytes, cudaHostAllocDefault), "memory for copies");
    bytes_ = bytes;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Two words, keys' and values', that kernels set and this machine takes.
class Flags {
 public:
  Flags() {
    const RelaxedCapture relaxed;
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, 2 * sizeof(uint32_t), cudaHostAllocMapped), "flags");
    words_ = static_cast<uint32_t*>(memory);
    words_[0] = words_[1] = 0;
  }
  ~Flags() {
    const RelaxedCapture relaxed;
    cudaFreeHost(const_cast<uint32_t*>(words_));
  }
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  uint32_t* there() const {
    void* pointer = nullptr;
    check(cudaHostGetDevicePointer(&pointer, const_cast<uint32_t*>(words_), 0), "flags");
    return static_cast<uint32_t*>(pointer);
  }
  bool take(int i) {
    if (words_[i] == 0) return false;
    words_[i] = 0;
    return true;
  }

 private:
  volatile uint32_t* words_ = nullptr;
};

}  // namespace kvasir::cuda
