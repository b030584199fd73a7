// Memory of the C library, whose pages go back to the operating system as soon as nothing is in them.
//
// A heap keeps freed memory wherever something younger lies behind it, so a cache that has closed thousands of
// sequences would hold on to what they had. Hence what is freed, or shrunk away, first gives up its whole pages by
// madvise: addresses stay the heap's, to be used again, and the kernel has no more mappings to keep than before, whose
// number it limits.
#include <sys/mman.h>
#include <unistd.h>

#include "base/aligned.h"
#include "engine/arena.h"

namespace kvasir {
namespace {

// Below this the call costs more than the memory is worth.
constexpr size_t kLeastReturned = 16 << 10;

// What lies in begin .. end is lost.
void return_pages(uint8_t* begin, uint8_t* end) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / page * page;
  if (first + kLeastReturned <= last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

class HostArena : public Arena {
 public:
  uint8_t* take(size_t bytes, bool) override { return make_aligned<uint8_t>(bytes).release(); }

  void shrink(uint8_t* memory, size_t taken, size_t kept) noexcept override {
    return_pages(memory + kept, memory + taken);
  }

  void give_back(uint8_t* memory, size_t taken, bool) noexcept override {
    return_pages(memory, memory + taken);
    FreeDeleter()(memory);
  }
};

}  // namespace

std::shared_ptr<Arena> host_arena() {
  static const std::shared_ptr<Arena> arena = std::make_shared<HostArena>();
  return arena;
}

}  // namespace kvasir
