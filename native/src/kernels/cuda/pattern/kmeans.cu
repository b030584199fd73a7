// k-means on tensor cores: the launches.
//
// Distances are |x|^2 - 2 <x, c> + |c|^2: points are float16 and exact, centres are split into two float16 numbers,
// sums are float32. Sums of points are products with a matrix of ones and zeros made from the labels. Steps after the
// one that converged do nothing.
#include <algorithm>

#include "kernels/cuda/layout/head_dims.h"
#include "kernels/cuda/pattern/kmeans.h"
#include "kernels/cuda/pattern/kmeans_lloyd.cuh"
#include "kernels/cuda/pattern/kmeans_seed.cuh"
#include "kernels/cuda/primitives/shared_memory.h"

namespace kvasir::cuda {
namespace {

template <int D>
cudaError_t mine(const Params& params, int max_steps, cudaStream_t stream) {
  const int problems = 2 * params.heads;
  const int assign_bytes = AssignShared<D>::bytes(params.clusters);
  // Refused for any number of clusters where it is for the most: mines_patterns knows none.
  const cudaError_t error = allow_shared_memory(assign_points<D>, AssignShared<D>::bytes(kMaxClusters));
  if (error != cudaSuccess) return error;
  start_seeding<D><<<problems, kSeedThreads, 0, stream>>>(params);
  const dim3 seed_grid((params.sample + kSeedRows - 1) / kSeedRows, problems);
  for (int round = 0; round < params.clusters; ++round) {
    seed_centre<D><<<seed_grid, kSeedThreads, 0, stream>>>(params, round);
  }
  for (int step = 0; step < max_steps; ++step) {
    assign_points<D><<<dim3(kParts, problems), kAssignThreads, assign_bytes, stream>>>(params, step);
    update_centres<D><<<dim3(params.clusters, problems), D, 0, stream>>>(params, step);
  }
  return cudaGetLastError();
}

}  // namespace

bool mines_patterns(int head_dim) {
  return shared_memory_has(
      with_head_dim(head_dim, [](auto dim) { return AssignShared<dim.value>::bytes(kMaxClusters); }));
}

size_t mining_scratch_bytes(const RowShape& shape, int64_t points) {
  return static_cast<size_t>(scratch_floats(shape.head_dim, points)) * sizeof(float) * 2 * shape.kv_heads;
}

cudaError_t mine_patterns(const MiningRequest& request, cudaStream_t stream) {
  const int d = request.shape.head_dim;
  if (!head_dim_supported(d) || request.tokens < 1 || request.points < 1 || request.points > request.tokens ||
      request.points > (1 << 30) || request.clusters < 1 || request.clusters > kMaxClusters || request.max_steps < 1 ||
      request.max_steps > kMaxSteps) {
    return cudaErrorInvalidValue;
  }
  Params params = {};
  params.head_elements = request.staging.rows * d;
  params.tokens = request.tokens;
  params.points = static_cast<int>(request.points);
  params.heads = request.shape.kv_heads;
  params.clusters = static_cast<int>(std::min<int64_t>(request.clusters, request.points));
  params.sample = std::min(params.points, 64 * params.clusters);
  params.tolerance = request.tolerance;
  params.seed = request.seed;
  params.scratch = static_cast<float*>(request.scratch);
  for (int s = 0; s < 2; ++s) {
    params.vectors[s] = request.vectors[s];
    if (request.vectors[s].vectors == nullptr) continue;
    params.rows[s] = request.staging.sides[s] + request.first_row * d;
  }
  return with_head_dim(d, [&](auto dim) { return mine<dim.value>(params, request.max_steps, stream); });
}

}  // namespace kvasir::cuda
