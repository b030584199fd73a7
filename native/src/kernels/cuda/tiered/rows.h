// Pages of layout.h, decoded to float32 rows: prompts, whose queries share what is decoded once. Rows are
// those that the host decodes, bit for bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/page_format.h"
#include "kernels/cuda/rows/unpack.h"
#include "kernels/cuda/tiered/layout.h"

namespace kvasir::cuda {

struct TieredRows {
  PageFormat keys, values;  // tiered_supported
  int kv_heads;
  const uint8_t* const* pages;  // [page_count] addresses of pages, in device memory
  int64_t page_count;
  float* sides[2];  // [kv_heads][128 * page_count][head_dim]; null: this side is left out
};

cudaError_t launch_tiered_rows(const TieredRows& request, cudaStream_t stream);

// Keys of pages of docs/format.md. The part of kv head h begins where entry h of the page's table says.
cudaError_t launch_tiered_key_rows(const PageFormat& format, int kv_heads, const RowUnpacking& unpacking,
                                   cudaStream_t stream);

}  // namespace kvasir::cuda
