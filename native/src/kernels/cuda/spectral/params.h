// What the kernel of spectral attention takes, and sizes that it and its launcher agree on.
#pragma once

#include "kernels/cuda/primitives/overlapping_launch.h"
#include "kernels/cuda/spectral/attend.h"

namespace kvasir::cuda {

constexpr int kMaxSpectralWarps = 16;
constexpr int kMaxSpectralSplits = 64;

struct SpectralParams {
  const DeviceSequence* sequences;
  const void* queries;
  void* outputs;
  uint32_t* arrivals;  // [count][kv_heads * row_blocks], 0 between launches
  float* partials;     // [count][kv_heads * row_blocks][splits][4][state_floats]
  const uint16_t* vectors[2];
  spectral::Layout layouts[2];
  int64_t value_offset;
  int count;
  int kv_heads;
  int group;
  int row_blocks;
  int splits;         // parts of a sequence
  int part_bytes[2];  // of a head
  int columns;        // most_columns
  int warp_bytes;     // of shared memory
  ElementType type;
  float scale;  // of scores, times log2(e)
  RowEnds ends;
};

KVASIR_HOST_DEVICE constexpr int greater(int a, int b) { return a > b ? a : b; }
KVASIR_HOST_DEVICE constexpr int lesser(int a, int b) { return a < b ? a : b; }
// Most columns of a head whose tiles have so many bits, each plane padded to a step of 32. Only a tile of 8 bits, which
// is 7 more than the least, has two columns for a channel.
KVASIR_HOST_DEVICE constexpr int most_columns(int d, int tile_bits) {
  return (d + 8 * lesser(d / 8, greater(tile_bits - d / 8, 0) / 7) + 3 * 24) / 32 * 32;
}
// Factors of 32 columns, two bytes for each, by head: heads begin in different banks.
constexpr int kFactorStride = 2 * 32 + 16;
KVASIR_HOST_DEVICE constexpr int factor_bytes(int columns) { return columns / 32 * 4 * kFactorStride; }
// A head's weights, two bytes for each token.
constexpr int kWeightStride = 2 * kPageTokens + 32;
// Norms of a page, as floats: eight rows of 16, in different banks.
constexpr int kNormStride = 96;
// What values' columns are to sums: 8 bytes each, of sixteen columns together, 16 on from those before, so that lanes,
// each with columns that follow each other, write to different banks.
KVASIR_HOST_DEVICE constexpr int column_end_at(int column) { return 8 * column + column / 16 * 16; }
// Sums of coefficients, [d][4]. The last four are nobody's: columns that only fill a step up are added there.
KVASIR_HOST_DEVICE constexpr int sums_bytes(int d) { return 16 * (d + 1); }
// The state of a head: sums of coefficients, outputs of rows, maximum and sum; heads begin in different banks.
KVASIR_HOST_DEVICE constexpr int state_floats(int d) { return 2 * d + 8; }
// What a warp has beside its slots and barriers: sums; factors of keys and norms; in the place of these come, for
// values, weights, in whose place norms were, and ends of columns.
KVASIR_HOST_DEVICE constexpr int warp_room(int d, int columns) {
  return sums_bytes(d) + greater(factor_bytes(columns) + 8 * kNormStride, 4 * kWeightStride + column_end_at(columns));
}
// Barriers come after that, then slots. Parts of heads are whole multiples of kPartAlignment, as slots are, so that
// moving a part on by so much makes it lie in its slot as in memory (line_skew).
constexpr int kPartAlignment = 64;
constexpr int kWarpBarriers = 16;  // bytes
KVASIR_HOST_DEVICE constexpr int slots_offset(int d, int columns) {
  return (warp_room(d, columns) + kWarpBarriers + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}
// All of it. parts: the bytes of a head's keys and values. In the end, the state of four heads stands behind the sums.
KVASIR_HOST_DEVICE constexpr int warp_bytes(int d, int columns, int parts) {
  return greater(slots_offset(d, columns) + parts + 2 * kPartAlignment,
                 (sums_bytes(d) + 16 * state_floats(d) + kPartAlignment - 1) / kPartAlignment * kPartAlignment);
}
// Of a block: before its warps, queries [d][4], coefficients of queries [d][4], scales [4]; and after them, what
// fragments of the last columns read beyond the last slot.
KVASIR_HOST_DEVICE constexpr int rooms_offset(int d) { return 32 * d + kPartAlignment; }
KVASIR_HOST_DEVICE constexpr int block_room(int d) { return rooms_offset(d) + 512; }

Kernel<SpectralParams> spectral_kernel(int head_dim);

}  // namespace kvasir::cuda
