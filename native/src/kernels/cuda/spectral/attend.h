// Attention over spectral keys and values on the device: the launch API.
//
//   SpectralPlan plan;
//   plan_spectral(shape, &plan);
//   cudaMalloc(&workspace, plan.workspace_bytes);
//   clear_workspace(plan, workspace, stream);  // once; launches leave it as they found it
//   launch_spectral(plan, request, stream);    // any number of times, one at a time per workspace
//
// Pages are those of docs/format.md; sinks and window are row tiles. One kernel; nothing is allocated or waited for,
// lengths and page tables are read from device memory, so it can be captured in a graph. Equal input gives equal bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "codecs/spectral/format.h"
#include "kernels/cuda/attend/split_heads.h"

namespace kvasir::cuda {

struct SpectralShape {
  int head_dim;  // head_dim_supported
  int kv_heads;
  int group;                    // query heads of a kv head; more than 4 read the pages again
  int sequences;                // most that a launch will have, 1..4096
  spectral::Layout layouts[2];  // of a head, by side
  int64_t value_offset;         // of the values' part in a page
};

struct SpectralPlan : SplitHeadsPlan {
  SpectralShape shape;
  int warps;  // of a block
};

struct SpectralRequest : SplitHeadsRequest {
  // By side, in float16: [kv_heads][head_dim][head_dim], one vector after the other; null: rows are as they are.
  const uint16_t* vectors[2] = {};
};

// For the current device. cudaErrorInvalidValue where the shape is not supported or does not fit.
cudaError_t plan_spectral(const SpectralShape& shape, SpectralPlan* plan);
cudaError_t launch_spectral(const SpectralPlan& plan, const SpectralRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
