#include "kernels/cuda/tiered/attend.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/primitives/shared_memory.h"
#include "kernels/cuda/tiered/params.h"

namespace kvasir::cuda {
namespace {

constexpr int kStaticSharedBytes = 1024;  // of the kernel itself, or less

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
  int most = 0;
  cudaError_t error = plan_blocks(shape.group, &made);
  if (error == cudaSuccess) error = most_shared_memory(&most);
  if (error != cudaSuccess) return error;
  const int room = most - kStaticSharedBytes - tiered_slots_offset(shape.head_dim);
  made.warps = std::min(kMaxTieredWarps, room / kTieredWarpBytes);
  if (made.warps < kMinTieredWarps) return cudaErrorInvalidValue;
  made.shared_bytes = tiered_shared_bytes(shape.head_dim, made.warps);
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
  params.warps = plan.warps;
  params.cap = request.soft_cap * static_cast<float>(M_LOG2E);
  const TieredFormat format = plan.shape.format();
  for (int span = 0; span < format.value_spans(); ++span) params.span_groups[span] = format.span_groups(span);
  for (int v = 0; 32 * v < format.head_dim; ++v) params.group_of[v] = format.group_of(32 * v);
  params.keys = code_unit(2, format.key_grid == Grid::kCells);
  params.key_middle = params.keys.centre / params.keys.step;
  params.values = code_unit(format.value_bits, format.value_grid == Grid::kCells);
  const dim3 grid(params.splits, params.kv_heads * params.row_blocks, params.count);
  return launch_kernel(kernel_of(plan.shape), {grid, 32 * plan.warps, plan.shared_bytes, plan.overlaps}, params,
                       stream);
}

}  // namespace kvasir::cuda
