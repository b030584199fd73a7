// A 64-byte aligned array between guard zones: writing outside it, or not writing all of it, is noticed.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace support {

template <class T>
class Guarded {
 public:
  explicit Guarded(size_t count) : count_(count), storage_(count * sizeof(T) + 3 * kGuard, kFill) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data()) + kGuard;
    begin_ = kGuard + (64 - address % 64) % 64;
  }

  T* data() { return reinterpret_cast<T*>(storage_.data() + begin_); }
  const T* data() const { return reinterpret_cast<const T*>(storage_.data() + begin_); }
  T& operator[](size_t i) { return data()[i]; }
  size_t size() const { return count_; }

  void fill(const T* values) { std::memcpy(data(), values, count_ * sizeof(T)); }

  bool guards_intact() const {
    for (size_t i = 0; i < begin_; ++i) {
      if (storage_[i] != kFill) return false;
    }
    for (size_t i = begin_ + count_ * sizeof(T); i < storage_.size(); ++i) {
      if (storage_[i] != kFill) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 128;
  static constexpr uint8_t kFill = 0xAB;
  size_t count_;
  size_t begin_;
  std::vector<uint8_t> storage_;
};

}  // namespace support
