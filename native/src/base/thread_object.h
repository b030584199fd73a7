// An object that each thread has for itself: made when the thread first asks, destroyed when it ends.
#pragma once

#include <memory>
#include <utility>

namespace kvasir {

#if defined(_WIN32)
// Calls destroy(object) when this thread ends, the newest first. Throws kUnavailable where the system has no room for
// that.
void at_thread_end(void* object, void (*destroy)(void*));
#endif

// This thread's T for a Purpose (any type, best a local one).
template <class Purpose, class T>
T& thread_object() {
#if defined(_WIN32)
  // GCC's thread_local objects are destroyed in memory that may have been freed before (its bug 80816): only the
  // address is one.
  thread_local T* object = nullptr;
  if (!object) {
    auto made = std::make_unique<T>();
    at_thread_end(made.get(), [](void* old) { delete static_cast<T*>(old); });
    object = made.release();
  }
  return *object;
#else
  thread_local T object;
  return object;
#endif
}

}  // namespace kvasir
