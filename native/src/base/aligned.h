// Uninitialised memory at multiples of 64 bytes: cache lines, and whole vectors of every backend.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "kvasir/error.h"

namespace kvasir {

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};

template <class T>
using AlignedArray = std::unique_ptr<T[], FreeDeleter>;

template <class T>
AlignedArray<T> make_aligned(size_t count) {
  const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, bytes ? bytes : 64);
  if (!memory) throw Error(ErrorCode::kOutOfMemory, "no memory for " + std::to_string(bytes) + " bytes");
  return AlignedArray<T>(static_cast<T*>(memory));
}

}  // namespace kvasir
