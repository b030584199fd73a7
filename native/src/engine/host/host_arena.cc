// Memory of the C library, whose pages go back to the operating system as soon as nothing is in them.
//
// A heap keeps freed memory wherever something younger lies behind it, so a cache that has closed thousands of
// sequences would hold on to what they had. Hence what is freed, or shrunk away, first gives up its whole pages by
// madvise: addresses stay the heap's, to be used again, and the kernel has no more mappings to keep than before, whose
// number it limits. Blocks too small for that lie in slabs (small_blocks.h).
#include "base/aligned.h"
#include "engine/arena.h"
#include "engine/host/small_blocks.h"

namespace kvasir {
namespace {

class HostArena : public Arena {
 public:
  uint8_t* take(size_t bytes, bool) override {
    return bytes <= SmallBlocks::kMost ? small_.take(bytes) : make_aligned<uint8_t>(bytes).release();
  }

  // The end of a small block waits for the rest of it.
  void shrink(uint8_t* memory, size_t taken, size_t kept) noexcept override {
    if (taken > SmallBlocks::kMost && kept + kLeastReturned <= taken) return_pages(memory + kept, memory + taken);
  }

  void give_back(uint8_t* memory, size_t taken, bool) noexcept override {
    if (taken <= SmallBlocks::kMost) return small_.give_back(memory, taken);
    return_pages(memory, memory + taken);
    FreeDeleter()(memory);
  }

 private:
  SmallBlocks small_;
};

}  // namespace

std::shared_ptr<Arena> host_arena() {
  static const std::shared_ptr<Arena> arena = std::make_shared<HostArena>();
  return arena;
}

}  // namespace kvasir
