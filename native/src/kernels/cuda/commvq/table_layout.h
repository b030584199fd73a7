// How key tables of CommVQ lie in device memory.
//
// Where a head's tables do not fit, they are cut into slices: of the pairs, and if that is not enough, of the stages.
// Scores are sums over slices. A slice is
//
//   double turns[pairs]          turns of a pair per position: frequency / 2 pi
//   float  step[pairs]           of the fixed point, times RoPE's magnitude
//   float  magnitude             RoPE's own, for rows that have no tables
//   rows   [stages][64]           of `chunks` times 64 bytes: pair after pair, real part and imaginary part
//
// for kExact; planes.h has the rest of a slice for kFast.
#pragma once

#include <cstddef>

#include "base/half.h"
#include "base/host_device.h"
#include "codecs/commvq/model.h"

namespace kvasir::cuda {

constexpr int kTableChunkBytes = 64;
constexpr int kEntryStride = 64;  // entries that a stage has room for
constexpr int kMaxSliceStages = 32;
constexpr int kPlaneGap = 32;  // bytes after the rows of a fast table (planes.h)
constexpr int kMaxSlicePairs = 64;
// What the sums of all stages of a slice are too large by, so that no field is ever negative.
constexpr int kExactBias = 32767;

struct KeyTableLayout {
  int kv_heads, head_dim, stages, entries;
  int index_bits;
  int planes;         // tables, which is what slices have `slice_stages` of: one a stage, or two (kFast)
  int element_bytes;  // 2 or 1
  int chunks;         // of a row: 1, 2 or 4
  int pair_slices;
  int stage_slices;
  int slice_stages;  // of every slice but the last, which may have fewer
  // kFast (planes.h), where there is one slice of stages:
  int low_planes = 0;     // tables of half a byte an entry
  int folded_planes = 0;  // the first one or two planes, which come in copies

  KVASIR_HOST_DEVICE constexpr bool fast() const { return element_bytes == 1; }

  KVASIR_HOST_DEVICE constexpr int chunk_pairs() const { return kTableChunkBytes / (2 * element_bytes); }
  KVASIR_HOST_DEVICE constexpr int slice_pairs() const { return chunks * chunk_pairs(); }
  KVASIR_HOST_DEVICE constexpr int row_bytes() const { return chunks * kTableChunkBytes; }
  KVASIR_HOST_DEVICE constexpr int slices() const { return pair_slices * stage_slices; }
  KVASIR_HOST_DEVICE constexpr int stages_of(int stage_slice) const {
    return stage_slice + 1 < stage_slices ? slice_stages : planes - stage_slice * slice_stages;
  }
  // Slices as even as can be, of at most so many tables each.
  constexpr void cut(int most) {
    const int fewest = (planes + most - 1) / most;
    slice_stages = (planes + fewest - 1) / fewest;
    stage_slices = (planes + slice_stages - 1) / slice_stages;
  }
  KVASIR_HOST_DEVICE constexpr int head_bytes() const { return (12 * slice_pairs() + 4 + 127) / 128 * 128; }
  // Tables of a slice but for low ones: folded planes take four.
  KVASIR_HOST_DEVICE constexpr int folded_tables() const { return folded_planes > 0 ? 4 : 0; }
  KVASIR_HOST_DEVICE constexpr int slice_tables() const { return slice_stages - folded_planes + folded_tables(); }
  KVASIR_HOST_DEVICE constexpr int table_bytes() const {
    // Four tables of half bytes are as large as two of bytes.
    return (slice_tables() + (low_planes + 3) / 4 * 2) * (kEntryStride * row_bytes() + (fast() ? kPlaneGap : 0));
  }
  KVASIR_HOST_DEVICE constexpr int slice_bytes() const { return (head_bytes() + table_bytes() + 127) / 128 * 128; }
  // Slices stand by kv head, then by pairs, then by stages.
  KVASIR_HOST_DEVICE constexpr size_t slice_offset(int kv_head, int pair_slice, int stage_slice) const {
    return static_cast<size_t>((kv_head * pair_slices + pair_slice) * stage_slices + stage_slice) * slice_bytes();
  }
  KVASIR_HOST_DEVICE constexpr size_t bytes() const { return slice_offset(kv_heads, 0, 0); }
};

// One element of an entry's planar row.
inline float key_entry(const commvq::KeyModel& model, int kv_head, int stage, int entry, int channel) {
  const uint16_t* table = model.chunk_tables(kv_head, channel / commvq::kChunk);
  return half_to_float(
      table[(static_cast<size_t>(stage) * model.entries + entry) * commvq::kChunk + channel % commvq::kChunk]);
}

}  // namespace kvasir::cuda
