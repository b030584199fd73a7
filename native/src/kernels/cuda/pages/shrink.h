// Drops narrowed codes to half the bits, byte for byte as the host's kernels do.
//
// A side shrinks from 16 to 8, 8 to 4 or 4 to 2 bits, or is copied where its width stays (sides of kHalves and
// kCodes as well). Both sides keep their family: fragments or canonical. One launch takes kShrinksPerLaunch pages;
// more take more launches. The list is read on the host before the call returns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/layout/side_format.h"
#include "kernels/cuda/layout/staging.h"

namespace kvasir::cuda {

constexpr int kShrinksPerLaunch = 1024;

// Device addresses, 128-byte aligned. `to` is `from` itself (in place: the page takes the front of its old bytes), or
// overlaps no page of the request.
struct ShrinkPage {
  const uint8_t* from;
  uint8_t* to;
};

struct ShrinkRequest {
  RowShape shape;
  SideFormat from[2];       // keys, values: as fragment_sides or canonical_sides made them
  SideFormat to[2];         // its format.numbers[kShift] says how codes shrink (progressive::Shift)
  const ShrinkPage* pages;  // on the host
  int64_t page_count;
};

// All pages in place, or none: cudaErrorInvalidValue where they are mixed.
cudaError_t shrink_pages(const ShrinkRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
