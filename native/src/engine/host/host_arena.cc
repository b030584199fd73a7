// Shrinkable memory comes straight from the operating system, in whole pages of its own.
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "base/aligned.h"
#include "engine/arena.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

size_t whole_pages(size_t bytes) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

class HostArena : public Arena {
 public:
  uint8_t* take(size_t bytes, bool shrinkable) override {
    if (!shrinkable) return make_aligned<uint8_t>(bytes).release();
    void* memory = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw Error(ErrorCode::kOutOfMemory, "no memory for " + std::to_string(bytes) + " bytes");
    }
    return static_cast<uint8_t*>(memory);
  }

  // The memory goes back at once. Addresses stay reserved, so that neighbouring mappings remain one to the kernel,
  // which limits their number.
  void shrink(uint8_t* memory, size_t taken, size_t kept) noexcept override {
    const size_t begin = whole_pages(kept), end = whole_pages(taken);
    if (begin < end) madvise(memory + begin, end - begin, MADV_DONTNEED);
  }

  void give_back(uint8_t* memory, size_t taken, bool shrinkable) noexcept override {
    if (shrinkable) {
      munmap(memory, whole_pages(taken));
    } else {
      FreeDeleter()(memory);
    }
  }
};

}  // namespace

std::shared_ptr<Arena> host_arena() {
  static const std::shared_ptr<Arena> arena = std::make_shared<HostArena>();
  return arena;
}

}  // namespace kvasir
