// Device memory, cut from large slabs, so that nothing is asked of the driver once a cache has its size.
//
// Blocks are given back while the device may still work on them: memory is reused by work that comes later in the
// order of the engine, never by the host. Free memory is kept by address, and neighbours grow together; a request gets
// the smallest piece that holds it. Slabs stay until the arena goes.
//
// Giving back must not fail, though it may leave one more piece of free memory to remember. Pieces never outnumber the
// blocks in use and the slabs, since one of either lies between any two; so `take` sees to it that there are nodes for
// that many, and giving back only moves them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "engine/arena.h"

namespace kvasir::cuda {

class DeviceArena : public Arena {
 public:
  explicit DeviceArena(int device) : device_(device) {}
  ~DeviceArena() override;
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Multiples of kAlignment.
  uint8_t* take(size_t bytes, bool shrinkable) override;
  void shrink(uint8_t* memory, size_t taken, size_t kept) noexcept override;
  void give_back(uint8_t* memory, size_t taken, bool shrinkable) noexcept override;

  static constexpr size_t kAlignment = 256;

 private:
  static constexpr size_t kSlabBytes = size_t{64} << 20;

  using BySize = std::set<std::pair<size_t, uintptr_t>>;
  using ByAddress = std::map<uintptr_t, size_t>;
  struct Nodes {
    ByAddress::node_type by_address;
    BySize::node_type by_size;
  };

  void add_slab(size_t bytes);
  void stock_nodes(size_t most);
  void release(uintptr_t begin, size_t bytes) noexcept;
  void add_free(uintptr_t begin, size_t bytes) noexcept;
  void remove_free(ByAddress::iterator piece) noexcept;

  const int device_;
  std::mutex mutex_;
  std::vector<std::pair<uint8_t*, size_t>> slabs_;
  ByAddress free_;
  BySize by_size_;            // the same
  std::vector<Nodes> spare_;  // has room for all that are in use too
  ByAddress used_;
};

// Memory of the arena that does not outlive a call.
class DeviceScratch {
 public:
  DeviceScratch() = default;
  DeviceScratch(DeviceArena& arena, size_t bytes) : arena_(&arena), bytes_(bytes), data_(arena.take(bytes, false)) {}
  DeviceScratch(DeviceScratch&& other) noexcept { *this = std::move(other); }
  DeviceScratch& operator=(DeviceScratch&& other) noexcept {
    std::swap(arena_, other.arena_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceScratch() {
    if (data_) arena_->give_back(data_, bytes_, false);
  }

  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  DeviceArena* arena_ = nullptr;
  size_t bytes_ = 0;
  uint8_t* data_ = nullptr;
};

}  // namespace kvasir::cuda
