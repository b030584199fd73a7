// Lloyd steps. Blocks share a problem's points: nearest centres, and sums of the points of each; then a block for each
// centre takes the mean, and says how far it moved.
#pragma once

#include "kernels/cuda/pattern/kmeans_problem.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kTileRows = 128;  // points of a block at a time
constexpr int kAssignThreads = 256;

template <int D>
struct AssignShared {
  alignas(16) uint16_t rows[kTileRows * (D + 8)];
  alignas(16) uint16_t labels[kTileRows];
  float norms[kMaxClusters];  // half of |c|^2; infinite where there is no centre
  int sizes[kMaxClusters];
  alignas(16) uint16_t centres[1];  // high halves of all, then low halves

  static int bytes(int clusters) {
    const int padded = (clusters + 15) / 16 * 16;
    return static_cast<int>(sizeof(AssignShared)) + 2 * 2 * padded * kCentreStride<D>;
  }
};

template <int D>
__device__ void load_centres(const Problem<D>& problem, int padded, AssignShared<D>& shared) {
  for (int i = threadIdx.x; i < padded * D; i += kAssignThreads) {
    const int k = i / D, c = i % D;
    const float value = k < problem.params.clusters ? problem.scratch.centres[i] : 0.0f;
    const __half high = __float2half_rn(value);
    shared.centres[k * kCentreStride<D> + c] = __half_as_ushort(high);
    shared.centres[(padded + k) * kCentreStride<D> + c] = __half_as_ushort(__float2half_rn(value - __half2float(high)));
  }
  for (int k = threadIdx.x / 32; k < kMaxClusters; k += kAssignThreads / 32) {
    float square = 0.0f;
    if (k < problem.params.clusters) {
      for (int c = threadIdx.x % 32; c < D; c += 32) {
        const float value = problem.scratch.centres[k * D + c];
        square = fmaf(value, value, square);
      }
      square = sum_over_warp(square);
    }
    if (threadIdx.x % 32 == 0) shared.norms[k] = k < problem.params.clusters ? 0.5f * square : INFINITY;
  }
  for (int k = threadIdx.x; k < kMaxClusters; k += kAssignThreads) shared.sizes[k] = 0;
}

// Labels and distances of the warp's 16 rows of a tile, which also go to shared memory.
template <int D>
__device__ __forceinline__ void label_rows(const Problem<D>& problem, int first, int padded, AssignShared<D>& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int local[2] = {16 * warp + lane / 4, 16 * warp + lane / 4 + 8};
  uint4 octets[2][D / 32];
  float square[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int index = first + local[r];
    const uint4* row = reinterpret_cast<const uint4*>(problem.point(min(index, problem.params.points - 1)));
#pragma unroll
    for (int s = 0; s < D / 32; ++s) octets[r][s] = __ldg(row + 4 * s + lane % 4);
#pragma unroll
    for (int s = 0; s < D / 32; ++s) {
      square[r] += square_sum(octets[r][s]);
      *reinterpret_cast<uint4*>(shared.rows + local[r] * (D + 8) + 32 * s + lane % 4 * 8) = octets[r][s];
    }
  }
  float best[2] = {INFINITY, INFINITY};
  int label[2] = {0, 0};
#pragma unroll 1
  for (int n = 0; n < padded; n += 8) {
    float c[4] = {};
    const uint16_t* high = shared.centres + (n + lane / 4) * kCentreStride<D> + lane % 4 * 8;
    const uint16_t* low = high + padded * kCentreStride<D>;
#pragma unroll
    for (int s = 0; s < D / 32; ++s) {
      mma_octets(c, octets[0][s], octets[1][s], *reinterpret_cast<const uint4*>(high + 32 * s));
      mma_octets(c, octets[0][s], octets[1][s], *reinterpret_cast<const uint4*>(low + 32 * s));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = n + 2 * (lane % 4) + i % 2;
      const float score = shared.norms[k] - c[i];
      if (score < best[i / 2]) {
        best[i / 2] = score;
        label[i / 2] = k;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    least_over_lanes<4>(best[r], label[r]);
    square[r] = sum_over_columns(square[r]);
    if (lane % 4 != 0) continue;
    const int index = first + local[r];
    const bool inside = index < problem.params.points;
    shared.labels[local[r]] = static_cast<uint16_t>(inside ? label[r] : 0xffff);  // which no cluster is
    if (!inside) continue;
    problem.scratch.distances[index] = fmaxf(square[r] + 2.0f * best[r], 0.0f);
    atomicAdd(&shared.sizes[label[r]], 1);
  }
}

template <int D>
__global__ void __launch_bounds__(kAssignThreads) assign_points(const __grid_constant__ Params params, int step) {
  extern __shared__ __align__(16) uint8_t memory[];
  AssignShared<D>& shared = *reinterpret_cast<AssignShared<D>*>(memory);
  const Problem<D> problem(params, blockIdx.y);
  if (!problem.present() || problem.converged(step)) return;
  const int padded = (params.clusters + 15) / 16 * 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  load_centres(problem, padded, shared);
  constexpr int kWarps = kAssignThreads / 32;
  constexpr int kMost = (D / 8 + kWarps - 1) / kWarps;  // eights of channels of a warp
  constexpr int kClusterTiles = kMaxClusters / 16;
  float sums[kMost][kClusterTiles][4] = {};
  for (int first = blockIdx.x * kTileRows; first < params.points; first += kParts * kTileRows) {
    __syncthreads();
    label_rows(problem, first, padded, shared);
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < kTileRows; t += 16) {
      // B: 16 points, 8 channels.
      uint32_t b[kMost][2];
#pragma unroll
      for (int j = 0; j < kMost; ++j) {
        const int eight = min(warp + j * kWarps, D / 8 - 1);
        const auto row =
            static_cast<uint32_t>(__cvta_generic_to_shared(shared.rows + (t + lane % 16) * (D + 8) + eight * 8));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                     : "=r"(b[j][0]), "=r"(b[j][1])
                     : "r"(row));
      }
      const uint32_t two = *reinterpret_cast<const uint32_t*>(shared.labels + t + lane % 4 * 2);
      const uint32_t more = *reinterpret_cast<const uint32_t*>(shared.labels + t + lane % 4 * 2 + 8);
#pragma unroll
      for (int m = 0; m < kClusterTiles; ++m) {
        if (16 * m >= padded) continue;
        // A: ones where the label is the cluster.
        auto ones = [&](uint32_t labels, uint32_t cluster) {
          return ((labels & 0xffff) == cluster ? 0x3c00u : 0u) | (labels >> 16 == cluster ? 0x3c000000u : 0u);
        };
        const uint32_t cluster = 16 * m + lane / 4;
        const uint4 a = {ones(two, cluster), ones(two, cluster + 8), ones(more, cluster), ones(more, cluster + 8)};
#pragma unroll
        for (int j = 0; j < kMost; ++j) mma_halves(sums[j][m], a, b[j][0], b[j][1]);
      }
    }
  }
  __syncthreads();
  float* out = problem.scratch.sums + static_cast<int64_t>(blockIdx.x) * kMaxClusters * D;
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    const int eight = warp + j * kWarps;
    if (eight >= D / 8) continue;
#pragma unroll
    for (int m = 0; m < kClusterTiles; ++m) {
      if (16 * m >= padded) continue;
      float* at = out + (16 * m + lane / 4) * D + eight * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(at) = {sums[j][m][0], sums[j][m][1]};
      *reinterpret_cast<float2*>(at + 8 * D) = {sums[j][m][2], sums[j][m][3]};
    }
  }
  for (int k = threadIdx.x; k < kMaxClusters; k += kAssignThreads) {
    problem.scratch.sizes[blockIdx.x * kMaxClusters + k] = shared.sizes[k];
  }
}

struct Farthest {
  float distance;
  int index;
  __device__ bool before(const Farthest& other) const {
    return distance > other.distance || (distance == other.distance && index < other.index);
  }
};

// The point that comes after `skip` others when points stand from the worst served to the best. All threads.
template <int D>
__device__ int worst_served(const Problem<D>& problem, int skip, int threads) {
  __shared__ Farthest found[256];
  Farthest last = {INFINITY, -1};
  for (int turn = 0; turn <= skip; ++turn) {
    Farthest mine = {-1.0f, 0x7fffffff};
    for (int i = threadIdx.x; i < problem.params.points; i += threads) {
      const Farthest here = {problem.scratch.distances[i], i};
      if (last.before(here) && here.before(mine)) mine = here;
    }
    found[threadIdx.x] = mine;
    __syncthreads();
    for (int i = 0; i < threads; ++i) {
      if (i == 0 || found[i].before(mine)) mine = found[i];
    }
    last = mine;
    __syncthreads();
  }
  return min(last.index, problem.params.points - 1);
}

// Block: a centre. Thread: a channel.
template <int D>
__global__ void __launch_bounds__(D) update_centres(const __grid_constant__ Params params, int step) {
  const Problem<D> problem(params, blockIdx.y);
  if (!problem.present()) return;
  const int k = blockIdx.x, c = threadIdx.x;
  if (problem.converged(step)) {
    if (c == 0) problem.scratch.moved[step * kMaxClusters + k] = 0.0f;
    return;
  }
  __shared__ int sizes[kMaxClusters];
  for (int i = c; i < params.clusters; i += D) {
    int size = 0;
    for (int p = 0; p < kParts; ++p) size += problem.scratch.sizes[p * kMaxClusters + i];
    sizes[i] = size;
  }
  double sum = 0.0;
#pragma unroll 8
  for (int p = 0; p < kParts; ++p) sum += problem.scratch.sums[(static_cast<int64_t>(p) * kMaxClusters + k) * D + c];
  __syncthreads();
  float target;
  if (sizes[k] > 0) {
    target = static_cast<float>(sum / sizes[k]);
  } else {
    int empty = 0;
    for (int i = 0; i < k; ++i) empty += sizes[i] == 0;
    target = __half2float(__ushort_as_half(problem.point(worst_served(problem, empty, D))[c]));
  }
  const double way = static_cast<double>(target) - problem.scratch.centres[k * D + c];
  problem.set_centre(k, c, target);
  __shared__ double parts[2][D / 32];
  double moved = way * way, length = static_cast<double>(target) * target;
  for (int mask = 1; mask < 32; mask *= 2) {
    moved += __shfl_xor_sync(0xffffffffu, moved, mask);
    length += __shfl_xor_sync(0xffffffffu, length, mask);
  }
  if (c % 32 == 0) {
    parts[0][c / 32] = moved;
    parts[1][c / 32] = length;
  }
  __syncthreads();
  if (c > 0) return;
  moved = length = 0.0;
  for (int i = 0; i < D / 32; ++i) {
    moved += parts[0][i];
    length += parts[1][i];
  }
  const double relative = moved == 0.0 ? 0.0 : length > 0.0 ? sqrt(moved / length) : INFINITY;
  problem.scratch.moved[step * kMaxClusters + k] = static_cast<float>(relative);
}

}  // namespace
}  // namespace kvasir::cuda
