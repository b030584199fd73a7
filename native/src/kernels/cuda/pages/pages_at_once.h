// How many pages are sealed together where each takes scratch: enough to fill a device, and never much memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvasir::cuda {

constexpr size_t kMostSealScratch = size_t{128} << 20;  // but for a single page
constexpr int64_t kMostPagesAtOnce = 64;

inline int64_t pages_at_once(size_t page_bytes, int64_t page_count) {
  const auto fit = static_cast<int64_t>(kMostSealScratch / std::max<size_t>(page_bytes, 1));
  return std::max<int64_t>(std::min({fit, kMostPagesAtOnce, page_count}), 1);
}

}  // namespace kvasir::cuda
