// Pages as float32 rows, bit for bit what the host's kernels decode: for inspection, for truncating, and for attention
// on pages that no fused kernel reads.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/rows.h"
#include "kernels/cuda/side_format.h"

namespace kvasir::cuda {

struct DecodeRowsRequest {
  RowShape shape;
  SideFormat sides[2];          // keys, values; kNone is left alone
  const uint8_t* const* pages;  // on the host: [page_count], device addresses
  int64_t page_count;
  FloatRows out;  // page p is tokens 128 p .. 128 p + 127; a side whose pointer is null is left out
};

// One launch takes kPagesPerLaunch pages, as in encode.h.
cudaError_t decode_rows(const DecodeRowsRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
