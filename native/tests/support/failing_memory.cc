#include "support/failing_memory.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> until_failure{0};  // 0: none is to fail
std::atomic<bool> failed{false};

bool fails_now() {
  if (until_failure.load(std::memory_order_relaxed) <= 0) return false;
  if (until_failure.fetch_sub(1) != 1) return false;
  failed = true;
  return true;
}

}  // namespace

namespace support {

FailingMemory::FailingMemory(int nth) {
  failed = false;
  until_failure = nth;
}
FailingMemory::~FailingMemory() { until_failure = 0; }
bool FailingMemory::has_failed() { return failed; }

}  // namespace support

#if !defined(_WIN32)
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) {
  void* memory = nullptr;
  if (fails_now() || posix_memalign(&memory, alignment, bytes) != 0) {
    errno = ENOMEM;
    return nullptr;
  }
  return memory;
}
#endif

void* operator new(size_t bytes) {
  void* memory = fails_now() ? nullptr : std::malloc(bytes ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return fails_now() ? nullptr : std::malloc(bytes ? bytes : 1);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return operator new(bytes, std::nothrow); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
