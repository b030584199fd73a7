// Memory straight from the operating system, whose end can be handed back while its beginning stays where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvasir {

class Mapping {
 public:
  Mapping() = default;
  // Throws kOutOfMemory.
  explicit Mapping(size_t bytes);
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  uint8_t* data() const { return data_; }
  // Keeps the first `bytes`; the memory of the pages behind them goes back at once. Addresses stay reserved, so that
  // neighbouring mappings remain one to the kernel, which limits their number.
  void shrink(size_t bytes) noexcept;

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kvasir
