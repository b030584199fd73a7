#include "base/system_memory.h"

#include <cstdlib>

#if defined(_WIN32)
#include <malloc.h>
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace kvasir {
namespace {

uintptr_t page_bytes() {
#if defined(_WIN32)
  SYSTEM_INFO info;
  GetSystemInfo(&info);
  return info.dwPageSize;
#else
  return static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
#endif
}

}  // namespace

void* take_aligned(size_t alignment, size_t bytes) noexcept {
#if defined(_WIN32)
  return _aligned_malloc(bytes, alignment);
#else
  return std::aligned_alloc(alignment, bytes);
#endif
}

void give_back_aligned(void* memory) noexcept {
#if defined(_WIN32)
  _aligned_free(memory);
#else
  std::free(memory);
#endif
}

void wish_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
  madvise(memory, bytes, MADV_HUGEPAGE);
#endif
}

void return_pages(uint8_t* begin, uint8_t* end) noexcept {
  static const uintptr_t page = page_bytes();
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / page * page;
  if (first >= last) return;
#if defined(_WIN32)
  VirtualAlloc(reinterpret_cast<void*>(first), last - first, MEM_RESET, PAGE_READWRITE);  // they stay committed
#elif defined(__APPLE__)
  madvise(reinterpret_cast<void*>(first), last - first, MADV_FREE);
#else
  madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
#endif
}

}  // namespace kvasir
