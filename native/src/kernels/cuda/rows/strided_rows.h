// Rows of a caller that are not as kernels of attention take them, dense and of one type: copies in and out.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kvasir/types.h"

namespace kvasir::cuda {

// How many rows a view has, and how wide they are. Strides of views are spelled out.
struct RowExtent {
  int64_t tokens;
  int heads;
  int width;
};

// to: [tokens][heads][width].
cudaError_t launch_gather_rows(const RowExtent& extent, const RowsView& from, void* to, ElementType type,
                               cudaStream_t stream);
// from: the same.
cudaError_t launch_scatter_rows(const RowExtent& extent, const void* from, ElementType type, const MutableRowsView& to,
                                cudaStream_t stream);

}  // namespace kvasir::cuda
