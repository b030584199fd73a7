// The pages of a launch, as kernel parameters: no table to upload, nothing for the caller to keep alive.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace kvasir::cuda {

constexpr int kPagesPerLaunch = 256;

template <class Byte>
struct PageList {
  Byte* pages[kPagesPerLaunch];
};
static_assert(sizeof(PageList<uint8_t>) <= 3072, "kernel parameters are 4 KB in all");

// Calls launch(list, pages in it, index of its first) until all are taken or one fails. most: pages of a list.
template <class Byte, class Launch>
cudaError_t for_page_lists(Byte* const* pages, int64_t count, const Launch& launch, int64_t most = kPagesPerLaunch) {
  for (int64_t first = 0; first < count; first += most) {
    const int taken = static_cast<int>(std::min(count - first, most));
    PageList<Byte> list = {};
    std::copy_n(pages + first, taken, list.pages);
    const cudaError_t error = launch(list, taken, first);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace kvasir::cuda
