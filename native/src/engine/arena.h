// Where the bytes of a cache lie: memory of this machine, or of a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvasir {

class Arena {
 public:
  virtual ~Arena() = default;
  // Uninitialised, at a multiple of 64 bytes. Shrinkable memory can hand back its end. Throws kOutOfMemory.
  virtual uint8_t* take(size_t bytes, bool shrinkable) = 0;
  // The first `kept` of the bytes `taken` stay where they are, and the rest goes back. May be called again with less.
  virtual void shrink(uint8_t* memory, size_t taken, size_t kept) noexcept = 0;
  virtual void give_back(uint8_t* memory, size_t taken, bool shrinkable) noexcept = 0;
};

// The memory of this machine; one for all.
std::shared_ptr<Arena> host_arena();

}  // namespace kvasir
