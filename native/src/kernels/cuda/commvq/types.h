// Plain data that CommVQ's attention reads in device memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/types.h"

namespace kvasir::cuda {

// From token `first` on, up to the next of its kind, positions are token numbers plus `offset`.
struct TokenShift {
  int64_t first;
  int64_t offset;
};

// One sequence of a batch. An array of these in device memory is what changes from step to step.
//
// A page is the canonical blob of docs/format.md: the key part of all kv heads, then the value part; it starts at a
// multiple of 64 bytes. Row tiles are those of layout/fragments.h; their keys are before RoPE, like those of the pages.
// Token numbers count from the beginning of the sequence; before the first shift a token's position is its number.
struct CommVqSequence {
  const uint8_t* const* pages;  // [page_count], in device memory
  int32_t page_count;
  int32_t hidden_tokens;     // of the first page that a sliding window has left behind, 0..127
  int64_t page_token;        // number of the first token of the first page
  int64_t sink_token;        // number of row 0 of `sinks`
  int64_t window_token;      // number of row 0 of `window`
  const TokenShift* shifts;  // [shift_count], ascending, in device memory; null where there are none
  int64_t shift_count;
  RowSpan sinks;
  RowSpan window;
};
static_assert(sizeof(CommVqSequence) == 88, "copied as it is");

}  // namespace kvasir::cuda
