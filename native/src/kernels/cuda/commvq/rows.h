// Pages of the codecs that attention has no fragments for, decoded to float32 rows: prompts, inspection, combinations
// without a fused kernel.
//
// Rows are [kv_heads][128 * page_count][head_dim], the pages one after the other. Arithmetic and its order are those of
// the host's decoders: rows are equal to theirs bit for bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "codecs/commvq/format.h"
#include "codecs/page_format.h"
#include "kvasir/rope.h"

namespace kvasir::cuda {

// One side of consecutive pages. Pages are in device memory, canonical, 64-byte aligned, and so is their table.
struct RowDecoding {
  const uint8_t* const* pages;  // [page_count]
  int64_t page_count;
  int64_t offset;  // of the side's first part in every page; 0 where the page begins with a table of offsets
  float* rows;
};

// Keys before RoPE. tables: those of commvq::KeyModel, as they are (plain_table_bytes).
cudaError_t launch_commvq_key_rows(const commvq::KeyPage& page, int head_dim, RopePairs pairs, const uint16_t* tables,
                                   const RowDecoding& decoding, cudaStream_t stream);

// tables: those of commvq::ValueModel, as they are.
cudaError_t launch_commvq_value_rows(const commvq::ValuePage& page, int kv_heads, int head_dim, const uint16_t* tables,
                                     const RowDecoding& decoding, cudaStream_t stream);

// Keys of the codec tiered. The part of kv head h begins where entry h of the page's table says.
cudaError_t launch_tiered_key_rows(const PageFormat& format, int kv_heads, const RowDecoding& decoding,
                                   cudaStream_t stream);

}  // namespace kvasir::cuda
