// What the kernel of tiered attention takes, and sizes that it and its launcher agree on.
#pragma once

#include "kernels/cuda/layout/code_unit.h"
#include "kernels/cuda/primitives/overlapping_launch.h"
#include "kernels/cuda/tiered/attend.h"

namespace kvasir::cuda {

constexpr int kTieredWarps = 16;
constexpr int kTieredSlots = 3;  // chunks that a warp has room for
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
  int splits;             // parts of a sequence
  int value_bytes;        // of all value groups
  uint32_t value_groups;  // bit v: a group begins with value chunk v
  CodeUnit keys;          // of 2 bits
  CodeUnit values;
  ElementType type;
  float scale;  // of scores, times log2(e)
  float cap;    // of scores, the same; 0: none
  RowEnds ends;
};

// Bytes of a slot. The key bounds come with the first chunk of keys.
KVASIR_HOST_DEVICE constexpr int tiered_slot_bytes(int head_dim, int value_bits) {
  const TieredFormat largest = {32, value_bits, 32, 32};
  const int value_bytes = largest.value_bytes(), key_bytes = head_dim + largest.narrow_chunk_bytes();
  return value_bytes > key_bytes ? value_bytes : key_bytes;
}
// Shared memory of a block: slots, queries, their magnitudes, their scales; a barrier for each slot.
KVASIR_HOST_DEVICE constexpr int tiered_barriers_offset(int head_dim, int value_bits) {
  return kTieredWarps * kTieredSlots * tiered_slot_bytes(head_dim, value_bits) + 16 * head_dim + 8 * head_dim + 16;
}
KVASIR_HOST_DEVICE constexpr int tiered_shared_bytes(int head_dim, int value_bits) {
  return tiered_barriers_offset(head_dim, value_bits) + kTieredWarps * kTieredSlots * 8;
}

// The kernels for values of 2 and of 4 bits.
Kernel<TieredParams> tiered_kernel_2(const TieredShape& shape);
Kernel<TieredParams> tiered_kernel_4(const TieredShape& shape);

}  // namespace kvasir::cuda
