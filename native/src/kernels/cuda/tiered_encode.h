// Seals pages of tiered keys and uniform values, as tiered_layout.h has them, on the device: byte for byte what
// pack_tiered makes of the host's parts. Two steps, because a page's size is known only after the first:
//
//   TierChoices choices = tier_choices(shape, pages, scratch);   // tier_choice_bytes(shape, pages) of it
//   choose_tiers(request, choices, stream);      // channels of each tier, and parameters
//   ... counts come down; pages get memory ...
//   seal_tiered_pages(request, choices, pages, stream);
//
// Nothing is allocated or waited for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "codecs/page_format.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/tiered_layout.h"

namespace kvasir::cuda {

// How many channels of a kv head of a page have 16 and 4 bits.
struct TierCounts {
  uint16_t n16;
  uint16_t n4;
};

// What choose_tiers finds out, in device memory, by page and kv head.
struct TierChoices {
  TierCounts* counts;    // [page_count][kv_heads]
  uint32_t* parameters;  // [page_count][kv_heads][kTokenGroups][head_dim]: range, and above it lo, as float16
  uint8_t* channels;     // [page_count][kv_heads][head_dim]: tier by tier, as docs/format.md has them
};
size_t tier_choice_bytes(const RowShape& shape, int64_t page_count);
// `scratch`: 16-byte aligned.
TierChoices tier_choices(const RowShape& shape, int64_t page_count, void* scratch);

struct TieredSealRequest {
  RowShape shape;
  PageFormat keys, values;  // for seal_tiered_pages: tiered_supported
  Staging staging;          // page p holds rows 128 p .. 128 p + 127
  int64_t page_count;
  const float* importance;  // [kv_heads][head_dim], finite; null: the error alone decides
};

// Any head dim that is a multiple of 2, 256 at most.
cudaError_t choose_tiers(const TieredSealRequest& request, const TierChoices& choices, cudaStream_t stream);

// Bytes of a head block with such tiers.
TieredBlock tiered_block(const PageFormat& keys, const PageFormat& values, TierCounts counts);

// pages: on the host, device addresses, 128-byte aligned; each has room for its table and head blocks.
cudaError_t seal_tiered_pages(const TieredSealRequest& request, const TierChoices& choices, uint8_t* const* pages,
                              cudaStream_t stream);

}  // namespace kvasir::cuda
