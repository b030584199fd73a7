// Working memory of a thread: kept and reused, because callers' stacks may be small and calls are many.
#pragma once

#include <cstddef>

#include "base/aligned.h"
#include "base/thread_object.h"

namespace kvasir {

// At least `count` elements, uninitialised, valid until this thread asks again with the same Purpose (any type, best a
// local one). Throws kOutOfMemory.
template <class Purpose, class T>
T* thread_scratch(size_t count) {
  struct Scratch {
    AlignedArray<T> memory;
    size_t capacity = 0;
  };
  auto& scratch = thread_object<Purpose, Scratch>();
  if (count > scratch.capacity) {
    scratch.memory = make_aligned<T>(count);
    scratch.capacity = count;
  }
  return scratch.memory.get();
}

}  // namespace kvasir
