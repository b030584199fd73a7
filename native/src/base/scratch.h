// Working memory of a thread: kept and reused, because callers' stacks may be small and calls are many.
#pragma once

#include <cstddef>

#include "base/aligned.h"

namespace kvasir {

// At least `count` elements, uninitialised, valid until this thread asks again with the same Purpose (any type, best a
// local one). Throws kOutOfMemory.
template <class Purpose, class T>
T* thread_scratch(size_t count) {
  thread_local AlignedArray<T> memory;
  thread_local size_t capacity = 0;
  if (count > capacity) {
    memory = make_aligned<T>(count);
    capacity = count;
  }
  return memory.get();
}

}  // namespace kvasir
