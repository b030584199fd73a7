// Codebooks of CommVQ in device memory: how they lie, and how a host makes the bytes to upload, once a layer.
//
// Keys. Decoding adds up two rows of a table for each stage, so attention is bound by what shared memory delivers. The
// tables of one kv head stay in a block's shared memory as whole numbers: fixed point with one step for each RoPE pair.
//
//   kExact   16 bits an entry, chosen so that sums fit 16 bits: about 1e-7 of a key's power is lost
//   kFast    8 bits an entry, 16 for stages that need them: at most 2.5e-5 of a key's variance (planes.h)
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
//
// Values. The codebook lies as commvq::ValueModel has it: float16 [kv_heads][codes][head_dim]; upload it as it is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "codecs/commvq/model.h"

namespace kvasir::cuda {

enum class KeyPrecision : int { kExact = 0, kFast = 1 };

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
  KVASIR_HOST_DEVICE constexpr int table_bytes() const {
    return slice_stages * (kEntryStride * row_bytes() + (fast() ? kPlaneGap : 0));
  }
  KVASIR_HOST_DEVICE constexpr int slice_bytes() const { return (head_bytes() + table_bytes() + 127) / 128 * 128; }
  // Slices stand by kv head, then by pairs, then by stages.
  KVASIR_HOST_DEVICE constexpr size_t slice_offset(int kv_head, int pair_slice, int stage_slice) const {
    return static_cast<size_t>((kv_head * pair_slices + pair_slice) * stage_slices + stage_slice) * slice_bytes();
  }
  KVASIR_HOST_DEVICE constexpr size_t bytes() const { return slice_offset(kv_heads, 0, 0); }
};

// How the tables of a model lie on the current device. Asks it for its shared memory.
cudaError_t plan_key_tables(const commvq::KeyModel& model, KeyPrecision precision, KeyTableLayout* layout);

// Writes layout.bytes() bytes, to be uploaded to memory that is 128-byte aligned. frequencies: [head_dim / 2], radians
// per position, and the factor by which the model multiplies rotated keys, as the host's attention has them. Pairs that
// only fill a slice up turn by nothing and are 0.
void pack_key_tables(const commvq::KeyModel& model, const KeyTableLayout& layout, const double* frequencies,
                     double magnitude, uint8_t* bytes);

// One element of an entry's planar row.
float key_entry(const commvq::KeyModel& model, int kv_head, int stage, int entry, int channel);

// Bytes of model.tables, for the decoders of rows (rows.h) and for values.
inline size_t plain_table_bytes(const commvq::KeyModel& model) {
  return sizeof(uint16_t) * model.page.kv_heads * model.page.stages * model.entries * model.head_dim;
}
inline size_t plain_table_bytes(const commvq::ValueModel& model) {
  return sizeof(uint16_t) * model.kv_heads * model.page.codes * model.head_dim;
}

}  // namespace kvasir::cuda
