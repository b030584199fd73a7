// Small pieces of device memory that are written together: one upload and one launch, however many there are.
#pragma once

#include <cstring>
#include <memory>

#include "engine/cuda/device_queue.h"
#include "kernels/cuda/rows/scatter.h"

namespace kvasir::cuda {

class Pieces {
 public:
  // At most `count` pieces of `bytes` bytes in all, multiples of 8 each. Takes all memory that it will need.
  Pieces(const DeviceQueue& queue, size_t count, size_t bytes)
      : queue_(queue),
        data_(count * sizeof(Piece)),
        staging_(new uint8_t[data_ + bytes]),
        memory_(queue.take(data_ + bytes)) {}

  void add(void* to, const void* from, size_t bytes) {
    const Piece piece = {static_cast<uint64_t*>(to), static_cast<uint32_t>(used_ / sizeof(uint64_t)),
                         static_cast<uint32_t>(bytes / sizeof(uint64_t))};
    std::memcpy(staging_.get() + count_ * sizeof(Piece), &piece, sizeof piece);
    std::memcpy(staging_.get() + data_ + used_, from, bytes);
    count_ += 1;
    used_ += bytes;
  }

  // `what` was being written.
  void write(const char* what) {
    if (count_ == 0) return;
    queue_.upload(memory_.as<void>(), staging_.get(), data_ + used_, what);
    const auto* const words = reinterpret_cast<const uint64_t*>(memory_.as<uint8_t>() + data_);
    check(scatter(words, memory_.as<Piece>(), static_cast<int>(count_), queue_.stream), what);
  }

 private:
  const DeviceQueue& queue_;
  const size_t data_;                         // where bytes begin, behind the list
  const std::unique_ptr<uint8_t[]> staging_;  // not cleared: most of it is never used
  const DeviceScratch memory_;
  size_t count_ = 0, used_ = 0;
};

}  // namespace kvasir::cuda
