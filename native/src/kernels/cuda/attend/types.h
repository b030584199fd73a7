// Plain data that attention reads in device memory or takes as kernel parameters.
#pragma once

#include <cstdint>

#include "kernels/cuda/layout/device_sequence.h"
#include "kernels/cuda/primitives/row_ends.h"

namespace kvasir::cuda {

// Pages are head blocks, one after the other, and start at multiples of 128 bytes: the low bits say which of the
// launch's formats the page has.
constexpr int kMaxPageFormats = 16;
inline uint64_t page_reference(const void* page, int format) {
  return reinterpret_cast<uint64_t>(page) | static_cast<uint64_t>(format);
}

// What the kernel must know of a HeadLayout. Widths are 1, 2, 3, 4, 8, kFloat16Bits or kWideBits; those of token keys
// 2, 4, 8 or kWideBits.
struct PageEntry {
  uint32_t kind;  // as in Tag, with its kJoin flags
  int32_t head_bytes;
  int16_t key_parameters, value_parameters;  // bytes, of one part
  int16_t key_groups, value_groups;
};

struct AttendShape {
  int head_dim;  // head_dim_supported
  int kv_heads;
  int group;      // query heads of a kv head: any number; more than 8 (4 at head dims 96 and 256) read the pages again
  int sequences;  // most that a launch will have, 1..4096
  bool labels = false;  // pages may have labels; takes shared memory
};

// Addresses of sequences that kernel parameters have room for.
constexpr int kInlineSequences = 64;

// What a launch keeps in device memory where tables have more than kNearVectors vectors: products of all queries with
// all key vectors, and for each warp the weights that it has found for value vectors.
constexpr int kNearVectors = 64;
struct VectorRoom {
  float* terms;  // [sequences][kv_heads * row_blocks][vectors + 1][query heads of a segment], by vector + 1; 0 is none
  float* sums;   // [blocks * consumers][vectors][query heads of a segment], as labels.cuh arranges them
  int vectors;   // of a table at most; a multiple of kTileSize
};

// What the pages of a launch may be. The fewer, the less code there is, which costs pages that never execute it.
enum class PageKinds : uint8_t {
  kAny,
  kPlain,            // no labels, no keys per token, no codes of 16 bits; and scores have no cap
  kFarTwoBits,       // the next, tables of more than kNearVectors among those of labels
  kLabelledTwoBits,  // the next, and such with labels
  kTwoBits,          // plain ones of codes of 2 bits, keys and values alike
};
constexpr int kPageKinds = 5;

// What there is to know, before lengths are, of a division of equally long segments among blocks (work.cuh).
struct EvenDivision {
  int together;    // segments of a block
  int runs;        // blocks, where one has all of its segments; 0: they do not come out even
  int most_apart;  // blocks that a segment may be cut for

  static EvenDivision of(int segments, int blocks) {
    const int together = (segments + blocks - 1) / blocks;
    return {together, segments % together == 0 ? segments / together : 0, segments < blocks ? blocks / segments : 1};
  }
};

// The launch's view of everything.
struct AttendParams {
  const DeviceSequence* inline_sequences[kInlineSequences];  // where listed_sequences is null
  const DeviceSequence* const* listed_sequences;             // in device memory
  const void* queries;                                       // [sequences][kv_heads * group][head_dim]
  void* outputs;                                             // the same shape
  float* block_partials;                                     // [blocks][2] partial states; then distant fronts
  uint32_t* arrivals;                                        // [segments], 0 between launches
  int count;                                                 // sequences
  int kv_heads;
  int group;        // query heads of a kv head
  int row_blocks;   // a segment takes 4 or 8 of them
  int consumers;    // warps that compute
  int slots;        // of each ring
  int cached;       // sequences that are kept in shared memory
  int short_units;  // units of a block that count as little to do
  EvenDivision even;
  bool labels;   // some pages have labels
  bool settled;  // AttendRequest::settled
  PageKinds pages;
  ElementType type;  // of queries and outputs
  float scale;       // of scores, times log2(e)
  float cap;         // of scores, the same; 0: none
  RowEnds ends;
  PageEntry formats[kMaxPageFormats];
  VectorRoom room;
};

}  // namespace kvasir::cuda
