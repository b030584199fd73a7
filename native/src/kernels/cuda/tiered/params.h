// What the kernel of tiered attention takes, and sizes that it and its launcher agree on.
#pragma once

#include "kernels/cuda/layout/code_unit.h"
#include "kernels/cuda/primitives/overlapping_launch.h"
#include "kernels/cuda/tiered/attend.h"

namespace kvasir::cuda {

constexpr int kMaxTieredWarps = 16, kMinTieredWarps = 4;
constexpr int kTieredSlots = 2;  // pieces that a warp has room for
constexpr int kMaxTieredSplits = 64;

struct TieredParams {
  const DeviceSequence* sequences;
  const void* queries;
  void* outputs;
  uint32_t* arrivals;  // [count][kv_heads * row_blocks], 0 between launches
  float* partials;     // [count][kv_heads * row_blocks][splits][4][head_dim + 2]: output, maximum, sum
  int count;
  int kv_heads;
  int group;
  int row_blocks;
  int splits;          // parts of a sequence
  int warps;           // of a block
  int span_groups[2];  // of values
  int group_of[8];     // of its span, that of channels 32 v .. 32 v + 31
  CodeUnit keys;       // of 2 bits
  float key_middle;    // what code 0 is above lo, in steps
  CodeUnit values;
  ElementType type;
  float scale;  // of scores, times log2(e)
  float cap;    // of scores, the same; 0: none
  RowEnds ends;
};

// Blocks are copied in pieces: the header with the first bands; the other bands; the 16-bit tier; each span of values,
// its parameters with the first of its codes. A small 16-bit tier comes with the last bands.
constexpr int kPieceBytes = 6288;
constexpr int kCodePieceBytes = 4096;
// With what a piece is moved by to lie in its slot as in memory (line_skew).
constexpr int kTieredSlotBytes = (kPieceBytes + 128 - 16 + 127) / 128 * 128;

template <int D, int kBits, int kKeyGroup>
struct TieredPieces {
  // But for the groups of values.
  KVASIR_HOST_DEVICE static constexpr TieredFormat format() { return {D, kBits, kKeyGroup, 32}; }
  static constexpr int kHeaderBytes = format().header_bytes();
  static constexpr int kBandBytes = format().band_bytes(kBandPairs);
  // Pairs of the first piece, of others, of one that has room for eight channels of the 16-bit tier. Steps are of two
  // bands.
  static constexpr int pairs_of(int bytes) { return bytes / (2 * kBandBytes) * 2 * kBandPairs; }
  static constexpr int kFirstPairs = pairs_of(kPieceBytes - kHeaderBytes);
  static constexpr int kPairs = pairs_of(kPieceBytes);
  static constexpr int kJoinedPairs = pairs_of(kPieceBytes - wide_bytes(kWideBlock));
  static constexpr int kWideBlocks = kPieceBytes / wide_bytes(kWideBlock);  // of a piece
  static constexpr int kSpans = format().value_spans();
  static constexpr int kSpanPieces = (format().span_code_bytes(0) + kCodePieceBytes - 1) / kCodePieceBytes;
  static constexpr int kPieceChannels = 8 * kCodePieceBytes / (kPageTokens * kBits);
  static_assert(kFirstPairs > 0 && value_parameter_bytes(kValueSpan / 32) + kCodePieceBytes <= kPieceBytes,
                "pieces hold what must not be cut");

  // How many pieces there are of other bands, and of the 16-bit tier.
  KVASIR_HOST_DEVICE static constexpr int band_pieces(int pairs) {
    return pairs <= kFirstPairs ? 0
                                : static_cast<int>(static_cast<unsigned>(pairs - kFirstPairs + kPairs - 1) / kPairs);
  }
  KVASIR_HOST_DEVICE static constexpr bool wide_joins(int pairs, int n16) {
    return n16 > 0 && n16 <= kWideBlock && pairs > kFirstPairs &&
           static_cast<unsigned>(pairs - kFirstPairs - 1) % kPairs < static_cast<unsigned>(kJoinedPairs);
  }
  KVASIR_HOST_DEVICE static constexpr int wide_pieces(int pairs, int n16) {
    return wide_joins(pairs, n16) ? 0
                                  : static_cast<int>(static_cast<unsigned>(n16 + kWideBlocks * kWideBlock - 1) /
                                                     (kWideBlocks * kWideBlock));
  }
};

// Shared memory of a block: tables of queries, fragments of queries, their magnitudes, their scales; a barrier for each
// slot, of as many warps as there may be; slots.
constexpr int kTieredWarpBytes = kTieredSlots * kTieredSlotBytes;
KVASIR_HOST_DEVICE constexpr int tiered_barriers_offset(int head_dim) {
  return kColumnKinds * head_dim * kQueryRowBytes + 16 * head_dim + 8 * head_dim + 16;
}
KVASIR_HOST_DEVICE constexpr int tiered_slots_offset(int head_dim) {
  return (tiered_barriers_offset(head_dim) + kMaxTieredWarps * kTieredSlots * 8 + 127) / 128 * 128;
}
KVASIR_HOST_DEVICE constexpr int tiered_shared_bytes(int head_dim, int warps) {
  return tiered_slots_offset(head_dim) + warps * kTieredWarpBytes;
}

// The kernels for values of 2 and of 4 bits.
Kernel<TieredParams> tiered_kernel_2(const TieredShape& shape);
Kernel<TieredParams> tiered_kernel_4(const TieredShape& shape);

}  // namespace kvasir::cuda
