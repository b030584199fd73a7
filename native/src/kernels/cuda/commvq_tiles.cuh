// The line of all tiles of 16 tokens of a batch, along which warps work.
#pragma once

#include "kernels/cuda/commvq_common.cuh"

namespace kvasir::cuda {

// Where a warp stands in the line of all tiles: sequence by sequence, page by page.
struct TileCursor {
  const CommVqParams& params;
  int sequence;
  int page;
  int tile;  // of the page
  int page_count;
  const uint8_t* data;  // the page

  // A whole warp. Nowhere where `first` is negative.
  __device__ TileCursor(const CommVqParams& p, int64_t first, int lane)
      : params(p), sequence(0), page(0), tile(0), page_count(0), data(nullptr) {
    if (first < 0) return;
    int64_t rest = first / kTilesPerPage;
    tile = static_cast<int>(first % kTilesPerPage);
    for (int base = 0;; base += 32) {
      const int count = base + lane < p.count ? p.sequences[base + lane].page_count : 0;
      int before = count;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, before, step);
        if (lane >= step) before += other;
      }
      const uint32_t beyond = __ballot_sync(0xffffffffu, before > rest);
      if (beyond != 0) {
        const int found = __ffs(beyond) - 1;
        sequence = base + found;
        page_count = __shfl_sync(0xffffffffu, count, found);
        page = static_cast<int>(rest) - (__shfl_sync(0xffffffffu, before, found) - page_count);
        break;
      }
      rest -= __shfl_sync(0xffffffffu, before, 31);
    }
    data = p.sequences[sequence].pages[page];
  }

  __device__ __forceinline__ void advance() {
    if (++tile < kTilesPerPage) return;
    tile = 0;
    if (++page == page_count) {
      page = 0;
      do page_count = params.sequences[++sequence].page_count;
      while (page_count == 0);
    }
    data = params.sequences[sequence].pages[page];
  }
};

}  // namespace kvasir::cuda
