// What the kernels of CommVQ's attention take, and sizes that they and their launcher agree on.
#pragma once

#include "kernels/cuda/commvq/attend.h"
#include "kernels/cuda/commvq/planes.h"

namespace kvasir::cuda {

// Scores: a block's warps, as many as registers allow. Where rows have four chunks, two warps share a tile.
constexpr int kScoreWarps = 16;
// Values: warps of a block, which has a processor to itself. Some make weights, the others multiply, and each of these
// takes some rows of the codebook.
constexpr int kWeightWarps = 8;
constexpr int kMultiplyWarps = 16;
constexpr int kValueWarps = kMultiplyWarps + kWeightWarps;
constexpr int kWarpCodeTiles = 2;
constexpr int kBlockCodes = kMultiplyWarps * kWarpCodeTiles * kTileSize;
constexpr int kBlockHeads = 32;  // query heads
constexpr int kMaxSplits = 128;  // of a sequence
// Merging: rows of the codebook of a block, and of one where there are few blocks and few parts of a sequence.
constexpr int kMergeCodes = 128;
constexpr int kFewMergeCodes = 64;
constexpr int kFewMergeSplits = 68;
constexpr int merge_slices(int codes, int merge_codes) { return (codes + merge_codes - 1) / merge_codes; }
constexpr int kTilesPerPage = kPageTokens / kTileSize;

// Shared memory of the first kernel: a slice, the turns of one tile, and codes of one tile for each warp.
constexpr int score_shared_bytes(const KeyTableLayout& layout) {
  if (layout.fast()) return plane_shared_bytes(layout);
  return layout.slice_bytes() + 8 * layout.slice_pairs() +
         kScoreWarps * ((layout.slice_stages + 1) / 2) * 4 * kTileSize;
}

// Floats of a row state: for four query heads the output, maximum and sum.
KVASIR_HOST_DEVICE constexpr int row_state_floats(int head_dim) { return 4 * (head_dim + 2); }

// Scores that a token has: one for each slice, or two where rows have four chunks.
KVASIR_HOST_DEVICE constexpr int score_slices(const KeyTableLayout& layout) {
  return layout.slices() * (layout.chunks == 4 ? 2 : 1);
}

// Where a token of a tile has its score: even tokens come first, as the second kernel wants them.
KVASIR_HOST_DEVICE constexpr int score_place(int token) { return token % 2 * (kTileSize / 2) + token / 2; }

struct CommVqParams {
  const CommVqSequence* sequences;
  const void* queries;
  void* outputs;
  const uint8_t* key_tables;
  const uint16_t* value_tables;
  KeyTableLayout tables;
  uint32_t* arrivals;  // [count][kv_heads * row_blocks], 0 between launches
  float* scores;       // [score_slices][tiles][query_heads][16], base-2 logarithms; their sums are the scores
  float2* states;      // [count][splits][query_heads]: of each part, the sum of weights in units of 2^(what is first)
  float* sums;         // [count][splits][query_heads][codes]: weights times bits
  float* row_states;   // [count][kv_heads * row_blocks][row_state_floats]
  float* shares;       // [count][kv_heads * row_blocks][codes / merge_codes][4][head_dim]
  int64_t tiles;       // most that scores have room for
  int count;
  int group;
  int row_blocks;
  int codes;
  int score_slices;
  int code_slices;
  int head_blocks;
  int splits;
  int merge_codes;  // rows of the codebook of a block of the third kernel
  bool overlaps;    // whether kernels begin while those before them end
  bool few_merges;  // whether each block of the third kernel has a processor to itself
  bool hopper;      // whether the second kernel is the one for Hopper
  bool neighbours;
  ElementType type;
  float scale;  // of scores, times log2(e)
  float cap;    // of scores, the same; 0: none
  RowEnds ends;

  KVASIR_HOST_DEVICE int query_heads() const { return tables.kv_heads * group; }
  KVASIR_HOST_DEVICE int key_stage_bytes() const { return 32 * tables.index_bits; }
  KVASIR_HOST_DEVICE int64_t key_head_bytes() const { return int64_t{tables.stages} * key_stage_bytes(); }
  KVASIR_HOST_DEVICE int64_t value_offset() const {
    return (2 * kPageTokens + tables.kv_heads * key_head_bytes() + 63) / 64 * 64;
  }
};

CommVqParams params_of(const CommVqPlan& plan, const CommVqRequest& request);

// The three kernels of a launch, in this order.
cudaError_t prepare_scores(const KeyTableLayout& layout, int shared_bytes);
cudaError_t launch_scores(const CommVqParams& params, int blocks, int shared_bytes, cudaStream_t stream);
cudaError_t prepare_plane_scores(const KeyTableLayout& layout, int shared_bytes);  // the same for fast tables
cudaError_t launch_plane_scores(const CommVqParams& params, int blocks, int shared_bytes, cudaStream_t stream);
// Chooses the second kernel: with `generic` the one that runs everywhere.
cudaError_t prepare_values(bool generic, bool* hopper, bool* overlaps);
cudaError_t launch_values(const CommVqParams& params, cudaStream_t stream);
cudaError_t launch_merge(const CommVqParams& params, cudaStream_t stream);

}  // namespace kvasir::cuda
