// How attention is cut among blocks by kernels that take a part of one sequence for four query heads of a kv head: what
// their plans, workspaces and requests have in common.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attend/types.h"

namespace kvasir::cuda {

constexpr int kMaxSplitSequences = 4096;  // of a launch

struct SplitHeadsPlan {
  int row_blocks;  // blocks of four query heads of a kv head
  int blocks;      // that fill the device
  int shared_bytes;
  bool overlaps;           // with the end of the grid before it
  size_t partials_offset;  // into the workspace, which begins with arrival counters
  size_t workspace_bytes;
};

struct SplitHeadsRequest {
  const DeviceSequence* sequences;  // in device memory; pages are plain addresses of pages
  int count;                        // at most shape.sequences
  const void* queries;              // [count][kv_heads * group][head_dim], device memory
  void* outputs;                    // the same; zeros for sequences without tokens
  ElementType type;                 // of queries and outputs
  float softmax_scale;
  float soft_cap;   // of scores, where the kernel caps them; 0: none
  void* workspace;  // 256-byte aligned
  RowEnds ends = {};
};

// Parts of a sequence: one block for each processor, or if there are more sequences and heads than processors, enough
// that the last blocks to finish are short.
inline int splits_for(const SplitHeadsPlan& plan, int kv_heads, int count, int most) {
  const int columns = kv_heads * plan.row_blocks * std::max(count, 1);
  const int splits = columns <= plan.blocks ? plan.blocks / columns : (4 * plan.blocks + columns - 1) / columns;
  return std::clamp(splits, 1, most);
}

// For the current device.
inline cudaError_t plan_blocks(int group, SplitHeadsPlan* plan) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&plan->blocks, cudaDevAttrMultiProcessorCount, device);
  plan->row_blocks = (group + 3) / 4;
  return error;
}

// Counters of arrivals, then states of `state_floats` a head, for any number of sequences up to this one.
inline void plan_workspace(int kv_heads, int sequences, int most_splits, int state_floats, SplitHeadsPlan* plan) {
  const auto aligned = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  int parts = 0;
  for (int count = 1; count <= sequences; ++count) {
    parts = std::max(parts, count * splits_for(*plan, kv_heads, count, most_splits));
  }
  const size_t rows = static_cast<size_t>(kv_heads) * plan->row_blocks;
  plan->partials_offset = aligned(sequences * rows * sizeof(uint32_t));
  plan->workspace_bytes = plan->partials_offset + aligned(parts * rows * 4 * state_floats * sizeof(float));
}

// Of the workspace, which are to be clear.
inline size_t counter_bytes(const SplitHeadsPlan& plan) { return plan.partials_offset; }
inline cudaError_t clear_workspace(const SplitHeadsPlan& plan, void* workspace, cudaStream_t stream) {
  return cudaMemsetAsync(workspace, 0, counter_bytes(plan), stream);
}

// What such kernels' parameters have in common, by name.
template <class Params>
void set_split(const SplitHeadsPlan& plan, const SplitHeadsRequest& request, int kv_heads, int group, int most_splits,
               Params* params) {
  params->sequences = request.sequences;
  params->queries = request.queries;
  params->outputs = request.outputs;
  params->arrivals = static_cast<uint32_t*>(request.workspace);
  params->partials = reinterpret_cast<float*>(static_cast<uint8_t*>(request.workspace) + plan.partials_offset);
  params->count = request.count;
  params->kv_heads = kv_heads;
  params->group = group;
  params->row_blocks = plan.row_blocks;
  params->splits = splits_for(plan, kv_heads, request.count, most_splits);
  params->ends = request.ends;
  params->type = request.type;
  params->scale = request.softmax_scale * static_cast<float>(M_LOG2E);
}

}  // namespace kvasir::cuda
