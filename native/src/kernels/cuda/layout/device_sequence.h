// What the device knows of one layer of one sequence.
#pragma once

#include <cstdint>

#include "kernels/cuda/layout/labels.h"

namespace kvasir::cuda {

// Float16 rows of one sequence (sinks, or the window), in blocks: block t holds rows 16t .. 16t + 15, as row tiles of
// layout/fragments.h of all kv heads, one after the other. Rows begin .. end - 1 are visible.
struct RowSpan {
  const uint64_t* blocks;  // their addresses, in device memory
  int32_t begin;
  int32_t end;
};

// One sequence of a batch: what changes from step to step. A launch is given addresses of these in device memory, and
// reads them when it runs.
struct DeviceSequence {
  const uint64_t* pages;  // in device memory: page_reference of each page
  int32_t page_count;
  int32_t hidden_tokens;  // of the first page that a sliding window has left behind, 0..127
  RowSpan sinks;
  RowSpan window;
  VectorTable key_vectors;  // these two for pages with labels
  VectorTable value_vectors;
};
static_assert(sizeof(DeviceSequence) == 112, "read as seven vectors");

}  // namespace kvasir::cuda
