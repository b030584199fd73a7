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
  ElementType type;
  float scale;  // of scores, times log2(e)
  RowEnds ends;
};

// Bytes of a factor's columns: all that a head can have, each plane padded to a step of 32, and 16 so that the eight
// rows of a fragment lie in different banks.
KVASIR_HOST_DEVICE constexpr int factor_stride(int d) { return 2 * d + 96 + 16; }
constexpr int kWeightStride = 196;  // bytes of weights of 128 tokens

KVASIR_HOST_DEVICE constexpr int greater(int a, int b) { return a > b ? a : b; }
// Most columns of a head, planes padded.
KVASIR_HOST_DEVICE constexpr int most_columns(int d) { return 2 * d + 96; }
// What a warp has beside its slots: sums [d][4], bases [d], and factors of keys. In the place of these come, for
// values, weights, steps and channels of columns; in that of bases and all behind them, in the end, the state of four
// heads.
KVASIR_HOST_DEVICE constexpr int warp_room(int d) {
  return 20 * d + greater(greater(8 * factor_stride(d), 8 * kWeightStride + 5 * most_columns(d)), 28 * d + 32);
}
// Of a block, beside its warps: queries [d][4], coefficients of queries [d][4], scales [4]; and what fragments of the
// last columns read beyond the last slot.
KVASIR_HOST_DEVICE constexpr int block_room(int d) { return 32 * d + 16 + 512; }

Kernel<SpectralParams> spectral_kernel(int head_dim);

}  // namespace kvasir::cuda
