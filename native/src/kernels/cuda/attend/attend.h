// Attention on the device: the launch API.
//
//   AttendPlan plan;
//   plan_attend({128, 8, 4, 16}, &plan);                       // head dim, kv heads, query heads a kv head, sequences
//   cudaMalloc(&workspace, plan.workspace_bytes);
//   clear_workspace(plan, workspace, stream);                  // once; launches leave it as they found it
//   launch_attend(plan, request, stream);                      // any number of times, one at a time per workspace
//
// Planning asks the device for its limits; launching asks nothing, allocates nothing and waits for nothing, so it can
// be captured in a CUDA graph. What changes between steps (lengths, page tables) is read from device memory: a graph
// follows sequences that grow, as long as their DeviceSequence stays where it was.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/attend/types.h"

namespace kvasir::cuda {

// How a block divides its shared memory.
struct AttendBlock {
  int consumers;  // warps that compute
  int slots;      // of each one's ring
  int shared_bytes;
};

struct AttendPlan {
  AttendShape shape;
  int tiles;       // query heads of a segment / 4
  int row_blocks;  // segments of a kv head
  int blocks;
  int cached;
  AttendBlock block_of[kPageKinds];  // by PageKinds
  bool overlaps;                     // with the end of the grid before it
  size_t partials_offset;            // into the workspace, which begins with the arrival counters
  size_t workspace_bytes;
};

struct AttendRequest {
  // [count] addresses in device memory, 16-byte aligned. The array itself is in host memory and read by launch_attend;
  // or, and for more than kInlineSequences, it is in device memory, and read by the kernel.
  const DeviceSequence* const* sequences;
  bool listed_on_device;
  int count;            // at most shape.sequences
  const void* queries;  // [count][kv_heads * group][head_dim], device memory, 16-byte aligned
  void* outputs;        // the same; zeros for sequences without tokens
  ElementType type;     // of queries and outputs
  float softmax_scale;
  const HeadLayout* formats;  // on the host: what page references name
  int format_count;           // 1..kMaxPageFormats
  void* workspace;            // 256-byte aligned
  // For tables of more than kNearVectors vectors: vector_room_bytes(plan, room_vectors) bytes, 256-byte aligned, of
  // any content. Outputs of sequences whose tables have outgrown it are not numbers.
  void* vector_room = nullptr;
  int room_vectors = 0;   // that it has room for, a multiple of kTileSize
  float soft_cap = 0.0f;  // scaled scores become soft_cap * tanh(score / soft_cap); 0: none
  RowEnds ends = {};
  // Descriptions, and the list of them, are what they are to be before the grid before this one begins, as in a graph
  // that does not write them. They are then read while that grid ends; all else is read when it has ended.
  bool settled = false;
};

// For the current device. cudaErrorInvalidValue where the shape is not supported or does not fit.
cudaError_t plan_attend(const AttendShape& shape, AttendPlan* plan);
// Of the workspace, which are to be clear.
inline size_t counter_bytes(const AttendPlan& plan) { return plan.partials_offset; }
cudaError_t clear_workspace(const AttendPlan& plan, void* workspace, cudaStream_t stream);
size_t vector_room_bytes(const AttendPlan& plan, int vectors);
cudaError_t launch_attend(const AttendPlan& plan, const AttendRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
