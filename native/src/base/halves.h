// float16 elements that are still to be written: rows on their way to images and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/aligned.h"

namespace kvasir {

class Halves {
 public:
  Halves() = default;

  // As many as there are sizes, in one piece of memory: that comes cheaper than many.
  static std::vector<Halves> make(const std::vector<size_t>& sizes) {
    size_t all = 0;
    for (const size_t size : sizes) all += padded(size);
    const std::shared_ptr<uint16_t> memory(make_large<uint16_t>(all).release(), FreeDeleter());
    std::vector<Halves> list;
    size_t at = 0;
    for (const size_t size : sizes) {
      list.push_back(Halves(std::shared_ptr<uint16_t>(memory, memory.get() + at), size));
      at += padded(size);
    }
    return list;
  }

  uint16_t* data() { return elements_.get(); }
  const uint16_t* data() const { return elements_.get(); }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(uint16_t); }
  bool empty() const { return size_ == 0; }

 private:
  Halves(std::shared_ptr<uint16_t> elements, size_t size) : elements_(std::move(elements)), size_(size) {}
  static size_t padded(size_t size) { return (size + 31) / 32 * 32; }  // 64 bytes

  std::shared_ptr<uint16_t> elements_;
  size_t size_ = 0;
};

}  // namespace kvasir
