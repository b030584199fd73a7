// Attention over CommVQ's pages on the device: the launch API.
//
//   KeyTableLayout tables;
//   plan_key_tables(key_model, KeyPrecision::kExact, &tables);      // tables.h: pack and upload them
//   CommVqPlan plan;
//   plan_commvq({tables, RopePairs::kHalves, group, codes, sequences, pages}, &plan);
//   cudaMalloc(&workspace, plan.workspace_bytes);
//   clear_workspace(plan, workspace, stream);                       // once; launches leave it as they found it
//   launch_commvq(plan, request, stream);                           // any number of times, one at a time per workspace
//
// A launch is three kernels on the stream: scores of all pages; weights times bits, for parts of each sequence, and the
// float16 rows; parts merged and multiplied by the codebook. On sm_90 each begins while the one before it ends, and the
// first while the grid before the launch ends; until then it reads nothing but `key_tables`. Scores pass through the
// workspace, 4 bytes a token and query head (per slice of the tables). Lengths and page tables are read from device
// memory; nothing is allocated or waited for, so a launch can be captured in a graph. Equal input gives equal bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/commvq/tables.h"
#include "kernels/cuda/commvq/types.h"
#include "kernels/cuda/primitives/row_ends.h"
#include "kvasir/types.h"

namespace kvasir::cuda {

struct CommVqShape {
  KeyTableLayout tables;
  RopePairs pairs;
  int group;             // query heads of a kv head; more than 4 decode keys again
  int codes;             // rows of the value codebook
  int sequences;         // most that a launch will have, 1..4096
  int64_t pages;         // most that all sequences of a launch will have together
  bool generic = false;  // kernels that run everywhere, even where there are faster ones: for tests
};

struct CommVqPlan {
  CommVqShape shape;
  int score_blocks;      // of the first kernel
  int score_shared;      // bytes
  int row_blocks;        // blocks of four query heads of a kv head
  int code_slices;       // parts of the codebook's rows, a block each
  int head_blocks;       // blocks of 32 query heads
  int value_blocks;      // that fill the device
  bool hopper;           // whether the second kernel is the one for Hopper
  bool overlaps;         // whether kernels begin while those before them end
  size_t scores_offset;  // into the workspace, which begins with arrival counters
  size_t states_offset;
  size_t sums_offset;
  size_t rows_offset;
  size_t shares_offset;
  size_t workspace_bytes;
};

struct CommVqRequest {
  const CommVqSequence* sequences;  // in device memory
  int count;                        // at most shape.sequences
  const void* queries;              // [count][kv_heads * group][head_dim] after RoPE, device memory, 16-byte aligned
  void* outputs;                    // the same; zeros for sequences without tokens
  ElementType type;                 // of queries and outputs
  float softmax_scale;
  float soft_cap;                // of scores; 0: none
  const uint8_t* key_tables;     // as pack_key_tables writes them
  const uint16_t* value_tables;  // float16 [kv_heads][codes][head_dim]
  void* workspace;               // 256-byte aligned
  RowEnds ends = {};
};

// For the current device. cudaErrorInvalidValue where the shape is not supported or does not fit: head dims are
// multiples of 16 in 32..256, codes a multiple of 16.
cudaError_t plan_commvq(const CommVqShape& shape, CommVqPlan* plan);
// Of the workspace, which are to be clear.
inline size_t counter_bytes(const CommVqPlan& plan) { return plan.scores_offset; }
cudaError_t clear_workspace(const CommVqPlan& plan, void* workspace, cudaStream_t stream);
cudaError_t launch_commvq(const CommVqPlan& plan, const CommVqRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
