// Uninitialised memory at multiples of 64 bytes: cache lines, and whole vectors of every backend.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/system_memory.h"
#include "kvasir/error.h"

namespace kvasir {

struct FreeDeleter {
  void operator()(void* memory) const { give_back_aligned(memory); }
};

template <class T>
using AlignedArray = std::unique_ptr<T[], FreeDeleter>;

template <class T>
AlignedArray<T> make_aligned(size_t count) {
  const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
  void* memory = take_aligned(64, bytes ? bytes : 64);
  if (!memory) throw Error(ErrorCode::kOutOfMemory, "no memory for " + std::to_string(bytes) + " bytes");
  return AlignedArray<T>(static_cast<T*>(memory));
}

// The same for megabytes that are written at once: the system is asked for its large pages, which are there with far
// fewer faults.
template <class T>
AlignedArray<T> make_large(size_t count) {
  constexpr size_t kLargePage = size_t{2} << 20;
  const size_t bytes = (count * sizeof(T) + kLargePage - 1) / kLargePage * kLargePage;
  if (count * sizeof(T) < 2 * kLargePage) return make_aligned<T>(count);
  void* memory = take_aligned(kLargePage, bytes);
  if (!memory) throw Error(ErrorCode::kOutOfMemory, "no memory for " + std::to_string(bytes) + " bytes");
  wish_large_pages(memory, bytes);
  return AlignedArray<T>(static_cast<T*>(memory));
}

}  // namespace kvasir
