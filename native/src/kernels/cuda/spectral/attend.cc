#include "kernels/cuda/spectral/attend.h"

#include <algorithm>

#include "kernels/cuda/layout/fragments.h"
#include "kernels/cuda/primitives/shared_memory.h"
#include "kernels/cuda/spectral/params.h"

namespace kvasir::cuda {
namespace {

constexpr int kLeastWarps = 4;  // which finish what all blocks have left

int columns_of(const SpectralShape& shape) {
  int most = 0;
  for (const spectral::Layout& layout : shape.layouts) {
    const auto tile_bits = static_cast<int>((layout.bytes - layout.codes) / kPageTokens);
    most = std::max(most, most_columns(shape.head_dim, tile_bits));
  }
  return most;
}

int bytes_of_warp(const SpectralShape& shape) {
  const auto parts = static_cast<int>(shape.layouts[0].bytes + shape.layouts[1].bytes);
  return warp_bytes(shape.head_dim, columns_of(shape), parts);
}

}  // namespace

cudaError_t plan_spectral(const SpectralShape& shape, SpectralPlan* plan) {
  if (!head_dim_supported(shape.head_dim) || shape.kv_heads < 1 || shape.group < 1) return cudaErrorInvalidValue;
  if (shape.sequences < 1 || shape.sequences > kMaxSplitSequences) return cudaErrorInvalidValue;
  SpectralPlan made = {};
  made.shape = shape;
  int most = 0;
  cudaError_t error = plan_blocks(shape.group, &made);
  if (error == cudaSuccess) error = most_shared_memory(&most);
  if (error != cudaSuccess) return error;
  made.warps = std::min(kMaxSpectralWarps, (most - block_room(shape.head_dim)) / bytes_of_warp(shape));
  if (made.warps < kLeastWarps) return cudaErrorInvalidValue;
  made.shared_bytes = block_room(shape.head_dim) + made.warps * bytes_of_warp(shape);
  error = prepare_kernel(spectral_kernel(shape.head_dim), made.shared_bytes, &made.overlaps);
  if (error != cudaSuccess) return error;
  plan_workspace(shape.kv_heads, shape.sequences, kMaxSpectralSplits, state_floats(shape.head_dim), &made);
  *plan = made;
  return cudaSuccess;
}

cudaError_t launch_spectral(const SpectralPlan& plan, const SpectralRequest& request, cudaStream_t stream) {
  if (request.count < 0 || request.count > plan.shape.sequences) return cudaErrorInvalidValue;
  if (request.count == 0) return cudaSuccess;
  SpectralParams params = {};
  set_split(plan, request, plan.shape.kv_heads, plan.shape.group, kMaxSpectralSplits, &params);
  for (int side = 0; side < 2; ++side) {
    params.vectors[side] = request.vectors[side];
    params.layouts[side] = plan.shape.layouts[side];
    params.part_bytes[side] = static_cast<int>(plan.shape.layouts[side].bytes);
  }
  params.columns = columns_of(plan.shape);
  params.warp_bytes = bytes_of_warp(plan.shape);
  params.value_offset = plan.shape.value_offset;
  const dim3 grid(params.splits, params.kv_heads * params.row_blocks, params.count);
  return launch_kernel(spectral_kernel(plan.shape.head_dim), {grid, 32 * plan.warps, plan.shared_bytes, plan.overlaps},
                       params, stream);
}

}  // namespace kvasir::cuda
