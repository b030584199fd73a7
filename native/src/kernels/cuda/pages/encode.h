// Seals pages: float16 rows of the staging, or rows as callers append them, become pages, byte for byte those of the
// host's kernels.
//
// One launch takes kPagesPerLaunch pages, all kv heads and both sides; more pages take more launches. The list of pages
// is read on the host before the call returns, and travels with the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/layout/input_rows.h"
#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/layout/side_format.h"
#include "kernels/cuda/layout/staging.h"

namespace kvasir::cuda {

struct EncodeRequest {
  RowShape shape;
  SideFormat sides[2];    // keys, values; one of elements kOwn is left alone
  Staging staging;        // rows are finite and at most kMaxMagnitude
  int64_t first_row;      // page p holds rows first_row + 128 p .. + 127, of the staging or of the input
  uint8_t* const* pages;  // on the host: [page_count], device addresses, 128-byte aligned
  int64_t page_count;
  // Where not null, rows are these instead, which are checked, scaled and rounded on the way. Sides that are present
  // are fragments.
  const InputRows* input = nullptr;
};

cudaError_t encode_pages(const EncodeRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
