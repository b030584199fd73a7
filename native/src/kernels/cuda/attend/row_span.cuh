// How kernels walk over the float16 rows of sinks and windows.
#pragma once

#include "kernels/cuda/attend/types.h"

namespace kvasir::cuda {

// Row tiles of a kv head that have visible rows; the first of them is tile begin / kTileSize.
__device__ __forceinline__ int row_tiles(const RowSpan& span) {
  return span.end > span.begin ? (span.end - 1) / kTileSize - span.begin / kTileSize + 1 : 0;
}

__device__ __forceinline__ const uint8_t* row_tile(const RowSpan& span, int tile, int kv_head, RowTileLayout layout) {
  return reinterpret_cast<const uint8_t*>(__ldg(span.blocks + tile)) + static_cast<int64_t>(kv_head) * layout.bytes();
}

// Has a warp's state take its row tiles of sinks and window, which go in turn to the parts of a sequence, then to the
// warps of a block.
template <int D, class Warp>
__device__ __forceinline__ void take_rows(const DeviceSequence& sequence, int kv_head, int split, int splits, int warp,
                                          int warps, Warp& state) {
  int turn = split + splits * warp;
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    const RowSpan span = which == 0 ? sequence.sinks : sequence.window;
    const int first = span.begin / kTileSize, count = row_tiles(span);
#pragma unroll 1
    for (; turn < count; turn += splits * warps) {
      const int tile = first + turn;
      state.rows(row_tile(span, tile, kv_head, RowTileLayout{D}), span.begin - tile * kTileSize,
                 span.end - tile * kTileSize);
    }
    turn -= count;
  }
}

}  // namespace kvasir::cuda
