// 16-bit rows: between what callers append, the staging that encoders read, and the row tiles of sinks and windows.
//
//   append     append_rows                       one small launch: the common case, a token that seals no page
//              append_listed_rows                the same for many sequences
//              append_newest_rows                the same for tokens that descriptions know of already
//   seal       gather_rows, stage_rows           window tail and new rows, side by side in the staging
//              pages/encode.h                    pages from the staging's front, or from new rows themselves
//              append_rows                       what is in none of them, as ever
//   truncate   unpack.h, restore_rows            the rows of a cut page return to the window
//   inspect    read_rows                         window rows as float32
//
// All pointers are to device memory, or to mapped host memory. Nothing is allocated or waited for; sizes of 0 do
// nothing. Elements are rounded to nearest even, as base/half.h does it. Head dims are multiples of 16, 32 .. 256.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/layout/device_sequence.h"
#include "kernels/cuda/layout/input_rows.h"
#include "kernels/cuda/layout/staging.h"

namespace kvasir::cuda {

// Where one input row goes: row `row` of a block.
struct RowMove {
  uint8_t* block;
  int32_t row;
  int32_t token;
};

// Sinks and windows lie in blocks of 16 rows: row r of a list is row r % 16 of block r / 16. A block is the row tiles
// of layout/fragments.h of all kv heads, one after the other, and begins at a multiple of 16 bytes. Lists are read on
// the host before a call returns.
using RowList = uint8_t* const*;

// Float32 rows: element (token, head, channel) of a side is at token * token_stride + head * head_stride + channel.
struct FloatRows {
  float* sides[2];  // null: this side is left out
  int64_t token_stride;
  int64_t head_stride;

  // The same from a later token on.
  FloatRows from(int64_t token) const {
    FloatRows later = *this;
    for (float*& side : later.sides) side = side == nullptr ? nullptr : side + token * token_stride;
    return later;
  }
};

// Input rows first .. first + count - 1 become rows `row`, row + 1, ... of the window. One launch, both sides.
cudaError_t append_rows(const RowShape& shape, const InputRows& input, int64_t first, int64_t count, RowList window,
                        int64_t row, cudaStream_t stream);

// Input rows go where `moves` says, of any number of sequences. One launch, both sides.
cudaError_t append_listed_rows(const RowShape& shape, const InputRows& input, const RowMove* moves, int64_t count,
                               cudaStream_t stream);

// Input row i becomes the newest row of sequence i, as its description says when the launch runs; sequences whose
// newest token is in a page stay as they are. sequences: [count] addresses, in device memory. One launch, both sides.
cudaError_t append_newest_rows(const RowShape& shape, const InputRows& input, const DeviceSequence* const* sequences,
                               int64_t count, cudaStream_t stream);

// The same into rows `row`, ... of the staging.
cudaError_t stage_rows(const RowShape& shape, const InputRows& input, int64_t first, int64_t count,
                       const Staging& staging, int64_t row, cudaStream_t stream);

// Window rows `row` .. row + count - 1 into rows `to`, ... of the staging.
cudaError_t gather_rows(const RowShape& shape, RowList window, int64_t row, int64_t count, const Staging& staging,
                        int64_t to, cudaStream_t stream);

// Single rows of blocks, one after the other: a row may be written after it was read.
struct RowCopies {
  static constexpr int kMost = 64;
  const uint8_t* from[kMost];
  uint8_t* to[kMost];
  uint8_t from_rows[kMost];
  uint8_t to_rows[kMost];
  int count;
};
cudaError_t copy_rows(const RowShape& shape, const RowCopies& copies, cudaStream_t stream);

// Window rows `row` .. row + count - 1 as float32 tokens 0, 1, ...
cudaError_t read_rows(const RowShape& shape, RowList window, int64_t row, int64_t count, const FloatRows& out,
                      cudaStream_t stream);

// Float32 tokens 0 .. count - 1, cut off at plus and minus kMaxMagnitude, into rows `row`, ... of the window: decoded
// rows may pass what append accepts, because ranges are rounded up.
cudaError_t restore_rows(const RowShape& shape, const FloatRows& from, int64_t count, RowList window, int64_t row,
                         cudaStream_t stream);

}  // namespace kvasir::cuda
