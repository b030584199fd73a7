#include "kernels/cuda/spectral/attend.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/layout/fragments.h"
#include "kernels/cuda/primitives/shared_memory.h"
#include "kernels/cuda/spectral/params.h"

namespace kvasir::cuda {
namespace {

constexpr int kMaxSequences = 4096;
constexpr int kLeastWarps = 4;  // which finish what all blocks have left

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Parts of a sequence: one block for each processor, or if there are more sequences and heads than processors, enough
// that the last blocks to finish are short.
int splits_for(const SpectralPlan& plan, int count) {
  const int columns = plan.shape.kv_heads * plan.row_blocks * std::max(count, 1);
  const int splits = columns <= plan.blocks ? plan.blocks / columns : (4 * plan.blocks + columns - 1) / columns;
  return std::clamp(splits, 1, kMaxSpectralSplits);
}

int warp_bytes(const SpectralShape& shape) {
  return warp_room(shape.head_dim) + static_cast<int>(shape.layouts[0].bytes + shape.layouts[1].bytes);
}

}  // namespace

cudaError_t plan_spectral(const SpectralShape& shape, SpectralPlan* plan) {
  if (!head_dim_supported(shape.head_dim) || shape.kv_heads < 1 || shape.group < 1) return cudaErrorInvalidValue;
  if (shape.sequences < 1 || shape.sequences > kMaxSequences) return cudaErrorInvalidValue;
  int device = 0, processors = 0, most = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = most_shared_memory(&most);
  if (error != cudaSuccess) return error;
  SpectralPlan made = {};
  made.shape = shape;
  made.row_blocks = (shape.group + 3) / 4;
  made.blocks = processors;
  made.warps = std::min(kMaxSpectralWarps, (most - block_room(shape.head_dim)) / warp_bytes(shape));
  if (made.warps < kLeastWarps) return cudaErrorInvalidValue;
  made.shared_bytes = block_room(shape.head_dim) + made.warps * warp_bytes(shape);
  error = prepare_kernel(spectral_kernel(shape.head_dim), most, &made.overlaps);
  if (error != cudaSuccess) return error;
  int parts = 0;
  for (int count = 1; count <= shape.sequences; ++count) parts = std::max(parts, count * splits_for(made, count));
  const size_t rows = static_cast<size_t>(shape.kv_heads) * made.row_blocks;
  made.partials_offset = aligned(shape.sequences * rows * sizeof(uint32_t));
  made.workspace_bytes = made.partials_offset + aligned(parts * rows * 4 * (2 * shape.head_dim + 2) * sizeof(float));
  *plan = made;
  return cudaSuccess;
}

cudaError_t clear_workspace(const SpectralPlan& plan, void* workspace, cudaStream_t stream) {
  return cudaMemsetAsync(workspace, 0, plan.partials_offset, stream);
}

cudaError_t launch_spectral(const SpectralPlan& plan, const SpectralRequest& request, cudaStream_t stream) {
  if (request.count < 0 || request.count > plan.shape.sequences) return cudaErrorInvalidValue;
  if (request.count == 0) return cudaSuccess;
  SpectralParams params = {};
  params.sequences = request.sequences;
  params.queries = request.queries;
  params.outputs = request.outputs;
  params.arrivals = static_cast<uint32_t*>(request.workspace);
  params.partials = reinterpret_cast<float*>(static_cast<uint8_t*>(request.workspace) + plan.partials_offset);
  for (int side = 0; side < 2; ++side) {
    params.vectors[side] = request.vectors[side];
    params.layouts[side] = plan.shape.layouts[side];
    params.slot_bytes[side] = static_cast<int>(plan.shape.layouts[side].bytes);
  }
  params.value_offset = plan.shape.value_offset;
  params.count = request.count;
  params.kv_heads = plan.shape.kv_heads;
  params.group = plan.shape.group;
  params.row_blocks = plan.row_blocks;
  params.splits = splits_for(plan, request.count);
  params.ends = request.ends;
  params.type = request.type;
  params.scale = request.softmax_scale * static_cast<float>(M_LOG2E);
  const dim3 grid(params.splits, params.kv_heads * params.row_blocks, params.count);
  return launch_kernel(spectral_kernel(plan.shape.head_dim), {grid, 32 * plan.warps, plan.shared_bytes, plan.overlaps},
                       params, stream);
}

}  // namespace kvasir::cuda
