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

}  // namespace kvasir::cuda
