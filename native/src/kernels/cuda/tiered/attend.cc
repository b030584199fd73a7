#include "kernels/cuda/tiered/attend.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/tiered/params.h"

namespace kvasir::cuda {
namespace {

Kernel<TieredParams> kernel_of(const TieredShape& shape) {
  return shape.value_bits == 2 ? tiered_kernel_2(shape) : tiered_kernel_4(shape);
}

}  // namespace

cudaError_t plan_tiered(const TieredShape& shape, TieredPlan* plan) {
  if (!head_dim_supported(shape.head_dim) || shape.kv_heads < 1 || shape.group < 1) return cudaErrorInvalidValue;
  if (shape.value_bits != 2 && shape.value_bits != 4) return cudaErrorInvalidValue;
  if (shape.key_group != 32 && shape.key_group != 128) return cudaErrorInvalidValue;
  if (shape.value_group < 32 || shape.value_group % 32 != 0) return cudaErrorInvalidValue;
  if (shape.sequences < 1 || shape.sequences > kMaxSplitSequences) return cudaErrorInvalidValue;
  TieredPlan made = {};
  made.shape = shape;
  cudaError_t error = plan_blocks(shape.group, &made);
  if (error != cudaSuccess) return error;
  made.shared_bytes = tiered_shared_bytes(shape.head_dim, shape.value_bits);
  error = prepare_kernel(kernel_of(shape), made.shared_bytes, &made.overlaps);
  if (error != cudaSuccess) return error;
  plan_workspace(shape.kv_heads, shape.sequences, kMaxTieredSplits, shape.head_dim + 2, &made);
  *plan = made;
  return cudaSuccess;
}

cudaError_t launch_tiered(const TieredPlan& plan, const TieredRequest& request, cudaStream_t stream) {
  if (request.count < 0 || request.count > plan.shape.sequences) return cudaErrorInvalidValue;
  if (request.count == 0) return cudaSuccess;
  TieredParams params = {};
  set_split(plan, request, plan.shape.kv_heads, plan.shape.group, kMaxTieredSplits, &params);
  params.cap = request.soft_cap * static_cast<float>(M_LOG2E);
  const TieredFormat format = plan.shape.format();
  params.value_bytes = format.value_bytes();
  for (int v = 0; v < format.value_chunks(); ++v) {
    params.value_groups |= uint32_t{32 * v % format.value_group == 0} << v;
  }
  params.keys = code_unit(2, format.key_grid == Grid::kCells);
  params.values = code_unit(format.value_bits, format.value_grid == Grid::kCells);
  const dim3 grid(params.splits, params.kv_heads * params.row_blocks, params.count);
  return launch_kernel(kernel_of(plan.shape), {grid, 32 * kTieredWarps, plan.shared_bytes, plan.overlaps}, params,
                       stream);
}

}  // namespace kvasir::cuda
