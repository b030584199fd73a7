// What the producer warp tells a consumer warp about a unit of work: a page, or a row tile.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kernels/cuda/layout/fragments.h"

namespace kvasir::cuda {

// What a consumer must know of a unit of work.
struct Tag {
  uint32_t kind;     // key bits | value bits << 8 | flags
  int segment;       // whose queries: (sequence * kv heads + kv head) * row blocks + row block
  uint32_t visible;  // first visible token | end of the visible tokens << 16
  int page;          // of its sequence; for row tiles anything

  static constexpr uint32_t kRows = 1 << 16;         // a row tile, else a page
  static constexpr uint32_t kLast = 2 << 16;         // the warp's last unit of this segment
  static constexpr uint32_t kComplete = 4 << 16;     // the warp has all units of this segment
  static constexpr uint32_t kFinal = 8 << 16;        // the warp's last unit
  static constexpr uint32_t kJoin = 16 << 16;        // << p: the part p after the first joins the chunk before it
  static constexpr uint32_t kTokenKeys = 128 << 16;  // HeadLayout::token_keys
  static constexpr uint32_t kLabels = 256 << 16;     // labels stand before the parts (layout/labels.h)
  static constexpr uint32_t kKeyCells = 512 << 16;   // HeadLayout::key_cells
  static constexpr uint32_t kValueCells = 1024 << 16;
  static constexpr uint32_t kOpens = 2048 << 16;  // queries are to be loaded for it (own_ring.cuh)
  KVASIR_HOST_DEVICE int key_bits() const { return kind & 255; }
  KVASIR_HOST_DEVICE int value_bits() const { return kind >> 8 & 255; }
  KVASIR_HOST_DEVICE bool has(uint32_t flag) const { return (kind & flag) != 0; }
  KVASIR_HOST_DEVICE int begin() const { return visible & 0xffff; }
  KVASIR_HOST_DEVICE int end() const { return visible >> 16; }
};
static_assert(sizeof(Tag) == 16, "one vector load");

// The kJoin flags of a unit: greedy, part after part.
KVASIR_HOST_DEVICE constexpr uint32_t join_flags(int key_groups, int key_parts, int value_groups, int value_parts) {
  uint32_t flags = 0;
  int used = (key_groups - 1) % kChunkGroups + 1;
  for (int p = 1; p < key_parts + value_parts; ++p) {
    const int groups = p < key_parts ? key_groups : value_groups;
    const bool joins = used + groups <= kChunkGroups;
    if (joins) flags |= Tag::kJoin << (p - 1);
    used = joins ? used + groups : (groups - 1) % kChunkGroups + 1;
  }
  return flags;
}

}  // namespace kvasir::cuda
