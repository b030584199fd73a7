#include "base/system_memory.h"

#include <cstdlib>

#if defined(_WIN32)
#include <malloc.h>
#include <windows.h>
#else
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace kvasir {
namespace {

// The lowest address of this thread's stack, 0 where the system does not say.
uintptr_t end_of_stack() {
#if defined(_WIN32)
  MEMORY_BASIC_INFORMATION region;
  return VirtualQuery(&region, &region, sizeof region) > 0 ? reinterpret_cast<uintptr_t>(region.AllocationBase) : 0;
#elif defined(__linux__)
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  void* end = nullptr;
  size_t bytes = 0;
  if (pthread_attr_getstack(&attributes, &end, &bytes) != 0) end = nullptr;
  pthread_attr_destroy(&attributes);
  return reinterpret_cast<uintptr_t>(end);
#else
  return 0;
#endif
}

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

bool stack_has(size_t bytes) noexcept {
  thread_local const uintptr_t end = end_of_stack();
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  return end == 0 || here < end || here - end >= bytes;
}

}  // namespace kvasir
