// Pages as rows. Float32 rows are bit for bit what the host's kernels decode: for inspection and for truncating.
// Float16 rows are those rounded: for attention on many query tokens, and on pages that no fused kernel reads.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/layout/side_format.h"
#include "kernels/cuda/rows/rows.h"

namespace kvasir::cuda {

struct UnpackRowsRequest {
  RowShape shape;
  SideFormat sides[2];          // keys, values; one of elements kOwn is left alone
  const uint8_t* const* pages;  // on the host: [page_count], device addresses
  int64_t page_count;
  FloatRows out;  // page p is tokens 128 p .. 128 p + 127; a side whose pointer is null is left out
};

// One launch takes kPagesPerLaunch pages, as in pages/encode.h.
cudaError_t unpack_rows(const UnpackRowsRequest& request, cudaStream_t stream);

// Float16 rows of one side, strides as in FloatRows, even ones. `high` is the nearest number, `low` the nearest to what
// it lacks: their sum is good to 22 bits, or to 2^-25.
struct HalfRows {
  uint16_t* high;  // null: this side is left out
  uint16_t* low;   // null: there is none
  int64_t token_stride;
  int64_t head_stride;
};

struct UnpackHalfRowsRequest {
  RowShape shape;
  SideFormat sides[2];
  const uint8_t* const* pages;
  int64_t page_count;
  HalfRows out[2];
};

cudaError_t unpack_half_rows(const UnpackHalfRowsRequest& request, cudaStream_t stream);

// For codecs with decoders of their own: one side of consecutive pages of docs/format.md. Pages are in device memory,
// 64-byte aligned, and so is their table.
struct RowUnpacking {
  const uint8_t* const* pages;  // [page_count]
  int64_t page_count;
  int64_t offset;  // of the side's first part in every page; 0 where `pages` are addresses of that part already, or
                   // where the codec finds its parts by the table that pages begin with
  float* rows;     // [kv_heads][128 * page_count][head_dim], the pages one after the other
};

// Pages that a launch counts in blockIdx.x; more take turns.
constexpr int grid_columns(int64_t pages) { return static_cast<int>(pages < (1 << 20) ? pages : 1 << 20); }

}  // namespace kvasir::cuda
