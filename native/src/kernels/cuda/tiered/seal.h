// Seals pages of tiered keys on the device. With uniform values, as layout.h has them: byte for byte what
// pack_tiered makes of the host's parts. Or the keys alone, as docs/format.md has them. Two steps, because a page's
// size is known only after the first:
//
//   TierChoices choices = tier_choices(shape, pages, scratch);   // tier_choice_bytes(shape, pages) of it
//   choose_tiers(request, choices, stream);      // channels of each tier, and parameters
//   ... counts come down; pages get memory ...
//   seal_tiered_pages(request, choices, pages, stream);          // or seal_tiered_parts
//
// Nothing is allocated or waited for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "codecs/page_format.h"
#include "kernels/cuda/layout/staging.h"
#include "kernels/cuda/tiered/layout.h"

namespace kvasir::cuda {

// How many channels of a kv head of a page have 16 and 4 bits.
struct TierCounts {
  uint16_t n16;
  uint16_t n4;
};

// What choose_tiers finds out, in device memory, by page and kv head.
struct TierChoices {
  TierCounts* counts;    // [page_count][kv_heads]
  uint32_t* parameters;  // [page_count][kv_heads][kTokenSpans][head_dim]: range, and above it lo, as float16
  uint8_t* channels;     // [page_count][kv_heads][head_dim]: tier by tier, as docs/format.md has them
};
size_t tier_choice_bytes(const RowShape& shape, int64_t page_count);
// `scratch`: 16-byte aligned.
TierChoices tier_choices(const RowShape& shape, int64_t page_count, void* scratch);

struct TieredSealRequest {
  RowShape shape;
  PageFormat keys;
  PageFormat values;  // seal_tiered_pages: tiered_supported; the others do not look at it
  Staging staging;    // page p holds rows 128 p .. 128 p + 127
  int64_t page_count;
  const float* importance;  // [kv_heads][head_dim], finite; null: the error alone decides
};

// Any head dim that is a multiple of 2, 256 at most.
cudaError_t choose_tiers(const TieredSealRequest& request, const TierChoices& choices, cudaStream_t stream);

// pages: on the host, device addresses, 128-byte aligned; each has room for its table and head blocks.
cudaError_t seal_tiered_pages(const TieredSealRequest& request, const TierChoices& choices, uint8_t* const* pages,
                              cudaStream_t stream);

// The table of offsets that a page of docs/format.md with tiered keys begins with.
struct PageTable {
  const uint32_t* offsets;  // in device memory: [page_count][parts + 1], those of keys first
  int parts;
  int bytes;  // with its padding
};

// Keys and the table of canonical pages; values are left alone. pages: as above, 64-byte aligned.
cudaError_t seal_tiered_parts(const TieredSealRequest& request, const TierChoices& choices, const PageTable& table,
                              uint8_t* const* pages, cudaStream_t stream);

}  // namespace kvasir::cuda
