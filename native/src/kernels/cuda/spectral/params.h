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
  // [count][kv_heads * row_blocks][splits][4][2 * head_dim + 2]: sums of coefficients, outputs of rows, maximum, sum.
  float* partials;
  const uint16_t* vectors[2];
  spectral::Layout layouts[2];
  int64_t value_offset;
  int count;
  int kv_heads;
  int group;
  int row_blocks;
  int splits;  // parts of a sequence
  int slot_bytes[2];
  int columns;     // most_columns
  int warp_bytes;  // of shared memory
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
// Bytes of a head's factors, two for each column, and of its weights, two for each token: heads begin in different
// banks.
KVASIR_HOST_DEVICE constexpr int factor_stride(int columns) { return 2 * columns + 32; }
constexpr int kWeightStride = 2 * kPageTokens + 32;
// Norms of a page, as floats: eight rows of 16, in different banks.
constexpr int kNormStride = 80;
// What a warp has beside its slots: sums [d][4]; factors of keys and norms; in the place of these come, for values,
// weights, in whose place norms were, and steps and places of columns.
KVASIR_HOST_DEVICE constexpr int warp_room(int d, int columns) {
  return 16 * d + greater(4 * factor_stride(columns) + 8 * kNormStride, 4 * kWeightStride + 8 * columns);
}
// With slots. In the end, the state of four heads stands behind the sums.
KVASIR_HOST_DEVICE constexpr int warp_bytes(int d, int columns, int slots) {
  return greater(warp_room(d, columns) + slots, 16 * d + 16 * (2 * d + 2));
}
// Of a block, beside its warps: queries [d][4], coefficients of queries [d][4], scales [4]; and what fragments of the
// last columns read beyond the last slot.
KVASIR_HOST_DEVICE constexpr int block_room(int d) { return 32 * d + 16 + 512; }

Kernel<SpectralParams> spectral_kernel(int head_dim);

}  // namespace kvasir::cuda
