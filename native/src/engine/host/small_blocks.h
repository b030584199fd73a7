// Small blocks of memory, cut from slabs, so that what is freed among blocks still in use goes back to the system.
//
// A heap gives its memory back at its end alone, and a block of less than some pages is not worth a call of its own. In
// a slab, blocks of about one size lie side by side. As soon as free neighbours have kLeastReturned bytes that were
// written to, their whole pages go back (madvise: addresses stay, mappings too), and a slab without blocks goes whole.
// So a block in use holds on to less than 2 * kLeastReturned bytes beside its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace kvasir {

// Below this a call costs more than the memory is worth.
constexpr size_t kLeastReturned = 16 << 10;

class SmallBlocks {
 public:
  // Above this a block goes back well enough by itself. Address sanitizers watch none but whole allocations.
#if defined(KVASIR_ADDRESS_SANITIZED)
  static constexpr size_t kMost = 0;
#else
  static constexpr size_t kMost = 32 << 10;
#endif

  // Uninitialised, at a multiple of 64 bytes. Throws kOutOfMemory.
  uint8_t* take(size_t bytes);
  void give_back(uint8_t* memory, size_t bytes) noexcept;

 private:
  static constexpr size_t kSlabBytes = 256 << 10;  // at multiples of itself
  static constexpr size_t kLeastSize = 256;

  struct Slab;
  // Blocks of one size.
  struct Size {
    std::mutex mutex;
    Slab* open = nullptr;  // slabs with free blocks, in a list
  };
  // Sizes grow by an eighth at most; 16 of them to a step.
  struct Rounded {
    size_t bytes;
    size_t index;
  };
  static Rounded round_up(size_t bytes);

  static Slab* make_slab(size_t size);
  static void link(Size& size, Slab* slab);
  static void unlink(Size& size, Slab* slab);

  Size sizes_[6 * 16 + 1];
};

}  // namespace kvasir
