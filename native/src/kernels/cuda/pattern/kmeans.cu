// k-means on tensor cores: the launches.
//
// Distances are |x|^2 - 2 <x, c> + |c|^2: points are float16 and exact, centres are rounded to it, as they are to be in
// the end; sums are float32. Sums of points are products with a matrix of ones and zeros made from the labels. Steps
// after the one that converged do nothing.
#include <algorithm>

#include "kernels/cuda/layout/head_dims.h"
#include "kernels/cuda/pattern/kmeans.h"
#include "kernels/cuda/pattern/kmeans_lloyd.cuh"
#include "kernels/cuda/pattern/kmeans_seed.cuh"
#include "kernels/cuda/primitives/cluster_launch.h"
#include "kernels/cuda/primitives/overlapping_launch.h"
#include "kernels/cuda/primitives/shared_memory.h"

namespace kvasir::cuda {
namespace {

template <int D>
cudaError_t seed(const Params& params, cudaStream_t stream) {
  const cudaError_t error = allow_shared_memory(seed_centres<D>, SeedShared<D>::bytes(kMaxSample, false));
  if (error != cudaSuccess) return error;
  const auto launch = [](int rows, bool distances) {
    return ClusterLaunch<Params>{seed_centres<D>, kSeedBlocks, kSeedThreads, SeedShared<D>::bytes(rows, distances)};
  };
  // Asked once: the library has one device.
  static const bool clusters = launch(kMaxSample / kSeedBlocks, true).runs();
  const int rows = clusters ? (params.sample + kSeedBlocks - 1) / kSeedBlocks : params.sample;
  return launch(rows, clusters)(2 * params.heads, clusters, params, stream);
}

template <int D, int kTiles>
cudaError_t move_centres(const Params& params, int max_steps, cudaStream_t stream) {
  using Shared = AssignShared<D, kTiles>;
  const int slots = shared_memory_has(Shared::bytes(2)) ? 2 : 1;
  const unsigned problems = 2 * params.heads;
  LaunchShape assign = {dim3(kParts, problems), kAssignThreads, Shared::bytes(slots), false};
  LaunchShape update = {dim3(params.clusters, problems), D, 0, false};
  cudaError_t error = prepare_kernel(assign_points<D, kTiles>, assign.shared_bytes, &assign.overlaps);
  update.overlaps = assign.overlaps;
  for (int step = 0; step < max_steps && error == cudaSuccess; ++step) {
    const StepParams request = {params, step, slots};
    error = launch_kernel(assign_points<D, kTiles>, assign, request, stream);
    if (error == cudaSuccess) error = launch_kernel(update_centres<D>, update, request, stream);
  }
  return error;
}

template <int D>
cudaError_t mine(const Params& params, int max_steps, cudaStream_t stream) {
  // Refused for any number of clusters where it is for the most: mines_patterns knows none.
  if (!mines_patterns(D)) return cudaErrorInvalidValue;
  const cudaError_t error = seed<D>(params, stream);
  if (error != cudaSuccess) return error;
  return (params.clusters <= 32 ? move_centres<D, 2> : move_centres<D, kMaxClusters / 16>)(params, max_steps, stream);
}

}  // namespace

bool mines_patterns(int head_dim) {
  return shared_memory_has(with_head_dim(head_dim, [](auto dim) {
    return std::max(AssignShared<dim.value, kMaxClusters / 16>::bytes(1),
                    SeedShared<dim.value>::bytes(kMaxSample, false));
  }));
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
