// Small pieces of memory that came up together, each to where it belongs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvasir::cuda {

// All in multiples of 8 bytes.
struct Piece {
  uint8_t* to;
  uint32_t offset;  // in what came up
  uint32_t bytes;
};

// Copies pieces[0 .. count - 1], which do not overlap, from `bytes`. All in device memory. One launch.
cudaError_t scatter(const uint8_t* bytes, const Piece* pieces, int count, cudaStream_t stream);

}  // namespace kvasir::cuda
