// Attention over tiered keys and uniform values on the device: the launch API.
//
//   TieredPlan plan;
//   plan_tiered({128, 8, 4, 2, 16}, &plan);    // head dim, kv heads, query heads a kv head, value bits, sequences
//   cudaMalloc(&workspace, plan.workspace_bytes);
//   clear_workspace(plan, workspace, stream);  // once; launches leave it as they found it
//   launch_tiered(plan, request, stream);      // any number of times, one at a time per workspace
//
// Pages are those of layout.h, 128-byte aligned, of any tiers; sinks and window are row tiles. One kernel;
// nothing is allocated or waited for, lengths and page tables are read from device memory, so it can be captured in a
// graph. Equal input gives equal bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/attend/split_heads.h"
#include "kernels/cuda/tiered/layout.h"

namespace kvasir::cuda {

struct TieredShape {
  int head_dim;  // head_dim_supported
  int kv_heads;
  int group;                             // query heads of a kv head; more than 4 read the pages again
  int value_bits;                        // 2 or 4
  int sequences;                         // most that a launch will have, 1..4096
  int key_group = 32, value_group = 32;  // of TieredFormat

  Grid key_grid = Grid::kEnds, value_grid = Grid::kEnds;

  TieredFormat format() const { return {head_dim, value_bits, key_group, value_group, key_grid, value_grid}; }
};

struct TieredPlan : SplitHeadsPlan {
  TieredShape shape;
  int warps;  // of a block
};

using TieredRequest = SplitHeadsRequest;

// For the current device. cudaErrorInvalidValue where the shape is not supported or does not fit.
cudaError_t plan_tiered(const TieredShape& shape, TieredPlan* plan);
cudaError_t launch_tiered(const TieredPlan& plan, const TieredRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
