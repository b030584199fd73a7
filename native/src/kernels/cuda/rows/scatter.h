// Small pieces of memory that came up together, each to where it belongs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvasir::cuda {

// In words, so that 32 bits are enough.
struct Piece {
  uint64_t* to;
  uint32_t first;  // of what came up
  uint32_t count;
};

// Copies pieces[0 .. count - 1], which do not overlap, from `words`. All in device memory. One launch.
cudaError_t scatter(const uint64_t* words, const Piece* pieces, int count, cudaStream_t stream);

}  // namespace kvasir::cuda
