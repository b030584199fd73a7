#include "kernels/cuda/tiered/attend.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/tiered/params.h"

namespace kvasir::cuda {
namespace {

constexpr int kMaxSequences = 4096;

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Parts of a sequence: one block for each processor, or if there are more sequences and heads than processors, enough
// that the last blocks to finish are short.
int splits_for(const TieredPlan& plan, int count) {
  const int columns = plan.shape.kv_heads * plan.row_blocks * std::max(count, 1);
  const int splits = columns <= plan.blocks ? plan.blocks / columns : (4 * plan.blocks + columns - 1) / columns;
  return std::clamp(splits, 1, kMaxTieredSplits);
}

Kernel<TieredParams> kernel_of(const TieredShape& shape) {
  return shape.value_bits == 2 ? tiered_kernel_2(shape) : tiered_kernel_4(shape);
}

}  // namespace

cudaError_t plan_tiered(const TieredShape& shape, TieredPlan* plan) {
  if (!head_dim_supported(shape.head_dim) || shape.kv_heads < 1 || shape.group < 1) return cudaErrorInvalidValue;
  if (shape.value_bits != 2 && shape.value_bits != 4) return cudaErrorInvalidValue;
  if (shape.key_group != 32 && shape.key_group != 128) return cudaErrorInvalidValue;
  if (shape.value_group < 32 || shape.value_group % 32 != 0) return cudaErrorInvalidValue;
  if (shape.sequences < 1 || shape.sequences > kMaxSequences) return cudaErrorInvalidValue;
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  TieredPlan made = {};
  made.shape = shape;
  made.row_blocks = (shape.group + 3) / 4;
  made.blocks = processors;
  made.shared_bytes = tiered_shared_bytes(shape.head_dim, shape.value_bits);
  error = prepare_kernel(kernel_of(shape), made.shared_bytes, &made.overlaps);
  if (error != cudaSuccess) return error;
  int parts = 0;
  for (int count = 1; count <= shape.sequences; ++count) parts = std::max(parts, count * splits_for(made, count));
  const size_t rows = static_cast<size_t>(shape.kv_heads) * made.row_blocks;
  made.partials_offset = aligned(shape.sequences * rows * sizeof(uint32_t));
  made.workspace_bytes = made.partials_offset + aligned(parts * rows * 4 * (shape.head_dim + 2) * sizeof(float));
  *plan = made;
  return cudaSuccess;
}

cudaError_t clear_workspace(const TieredPlan& plan, void* workspace, cudaStream_t stream) {
  return cudaMemsetAsync(workspace, 0, plan.partials_offset, stream);
}

cudaError_t launch_tiered(const TieredPlan& plan, const TieredRequest& request, cudaStream_t stream) {
  if (request.count < 0 || request.count > plan.shape.sequences) return cudaErrorInvalidValue;
  if (request.count == 0) return cudaSuccess;
  TieredParams params = {};
  params.sequences = request.sequences;
  params.queries = request.queries;
  params.outputs = request.outputs;
  params.arrivals = static_cast<uint32_t*>(request.workspace);
  params.partials = reinterpret_cast<float*>(static_cast<uint8_t*>(request.workspace) + plan.partials_offset);
  params.count = request.count;
  params.kv_heads = plan.shape.kv_heads;
  params.group = plan.shape.group;
  params.row_blocks = plan.row_blocks;
  params.splits = splits_for(plan, request.count);
  const TieredFormat format = plan.shape.format();
  params.value_bytes = format.value_bytes();
  for (int v = 0; v < format.value_chunks(); ++v) {
    params.value_groups |= uint32_t{32 * v % format.value_group == 0} << v;
  }
  params.keys = code_unit(2, format.key_grid == Grid::kCells);
  params.values = code_unit(format.value_bits, format.value_grid == Grid::kCells);
  params.ends = request.ends;
  params.type = request.type;
  params.scale = request.softmax_scale * static_cast<float>(M_LOG2E);
  const dim3 grid(params.splits, params.kv_heads * params.row_blocks, params.count);
  return launch_kernel(kernel_of(plan.shape), {grid, 32 * kTieredWarps, plan.shared_bytes, plan.overlaps}, params,
                       stream);
}

}  // namespace kvasir::cuda
