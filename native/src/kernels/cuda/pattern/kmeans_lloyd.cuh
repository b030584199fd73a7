// Lloyd steps. Blocks share a problem's points: nearest centres, and sums of the points of each; then a block for each
// centre takes the mean, and says how far it moved.
#pragma once

#include "kernels/cuda/pattern/kmeans_problem.cuh"
#include "kernels/cuda/primitives/barrier.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kTileRows = 128;  // points of a block at a time
constexpr int kAssignThreads = 256;
constexpr int kAssignWarps = kAssignThreads / 32;
static_assert(kTileRows == 16 * kAssignWarps, "a warp finds the centres of 16 points");
constexpr float kNobody = -1.0f;  // a label that no cluster has

struct StepParams {
  Params params;
  int step;
  int slots;  // for points in shared memory: with two the next ones come while the first are worked on
};

// Shared memory of assign_points, for 16 * kTiles clusters.
template <int D, int kTiles>
struct AssignShared {
  static constexpr int kStride = D + 8;  // of rows: ldmatrix meets no bank twice
  static constexpr int kClusters = 16 * kTiles;
  using Rows = uint16_t[kTileRows][kStride];

  alignas(16) uint16_t centres[kClusters][kStride];
  alignas(16) __half labels[kTileRows];  // as numbers, for comparisons that give 1 or 0
  float norms[kClusters];                // half of |c|^2; infinite where there is no centre
  int sizes[kClusters];
  alignas(16) Rows rows[1];  // as many as there are slots; in the end sums [kClusters][kStride]
  static_assert(sizeof(float[kClusters][kStride]) <= sizeof(Rows));

  __device__ float* sums() { return reinterpret_cast<float*>(rows); }
  static constexpr int bytes(int slots) { return static_cast<int>(sizeof(AssignShared) + (slots - 1) * sizeof(Rows)); }
};

template <int D, int kTiles>
class Assignment {
 public:
  using Shared = AssignShared<D, kTiles>;

  __device__ __forceinline__ Assignment(const Problem<D>& problem, int step, Shared& shared)
      : problem_(problem), first_step_(step == 0), shared_(shared), lane_(threadIdx.x % 32), warp_(warp_index()) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      clusters_[m][0] = __float2half2_rn(static_cast<float>(16 * m + lane_ / 4));
      clusters_[m][1] = __float2half2_rn(static_cast<float>(16 * m + lane_ / 4 + 8));
    }
  }

  // Asks for points first, first + 1, ...; the last one stands for those that do not exist.
  __device__ __forceinline__ void fetch(int first, int slot) {
    constexpr int kOctets = D / 8;
    if (first < problem_.params.points) {
#pragma unroll
      for (int i = 0; i < kTileRows * kOctets / kAssignThreads; ++i) {
        const int at = threadIdx.x + i * kAssignThreads, row = at / kOctets, octet = at % kOctets;
        const uint16_t* const point = problem_.point(min(first + row, problem_.params.points - 1));
        copy16(shared_address(&shared_.rows[slot][row][8 * octet]), point + 8 * octet);
      }
    }
    commit_copies();
  }

  // Rounded, as they are to be in the end. Eight lanes load one.
  __device__ __forceinline__ void load_centres() {
#pragma unroll
    for (int i = 0; i < Shared::kClusters / (kAssignThreads / 8); ++i) {
      const int k = static_cast<int>(threadIdx.x) / 8 + i * (kAssignThreads / 8), first = threadIdx.x % 8 * 4;
      const bool exists = k < problem_.params.clusters;
      float square = 0.0f;
#pragma unroll
      for (int c = 0; c < D; c += 32) {
        float4 four = {};
        if (exists) four = *reinterpret_cast<const float4*>(problem_.scratch.centres + k * D + c + first);
        const uint2 halves = {floats_to_halves(four.x, four.y), floats_to_halves(four.z, four.w)};
        *reinterpret_cast<uint2*>(&shared_.centres[k][c + first]) = halves;
        const float2 low = halves_to_floats(halves.x), high = halves_to_floats(halves.y);
        square = fmaf(low.x, low.x, fmaf(low.y, low.y, fmaf(high.x, high.x, fmaf(high.y, high.y, square))));
      }
#pragma unroll
      for (int mask = 1; mask < 8; mask *= 2) square += __shfl_xor_sync(0xffffffffu, square, mask);
      if (threadIdx.x % 8 == 0) {
        shared_.norms[k] = exists ? 0.5f * square : INFINITY;
        shared_.sizes[k] = 0;
      }
    }
  }

  // Labels and distances of the warp's 16 points.
  __device__ __forceinline__ void label(int first, int slot) {
    float squares[2];  // of the lengths of points
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      squares[r] = problem_.scratch.squares[min(first + row_of(r), problem_.params.points - 1)];
    }
    float c[2 * kTiles][4] = {};  // products of points and centres, eight centres each
    multiply(slot, c);
    float best[2] = {INFINITY, INFINITY};
    int label[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < 2 * kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = 8 * n + 2 * (lane_ % 4) + i % 2;
        const float score = shared_.norms[k] - c[n][i];
        if (score < best[i / 2]) {
          best[i / 2] = score;
          label[i / 2] = k;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      least_over_lanes<4>(best[r], label[r]);
      const int point = first + row_of(r);
      const bool exists = point < problem_.params.points;
      if (first_step_) squares[r] = square_of(slot, r);
      if (lane_ % 4 != 0) continue;
      shared_.labels[row_of(r)] = __float2half_rn(exists ? static_cast<float>(label[r]) : kNobody);
      if (!exists) continue;
      if (first_step_) problem_.scratch.squares[point] = squares[r];
      problem_.scratch.distances[point] = fmaxf(squares[r] + 2.0f * best[r], 0.0f);
      atomicAdd(&shared_.sizes[label[r]], 1);
    }
  }

  // Adds points to the sums of their clusters. A warp has a part of the points and a part of the channels.
  __device__ __forceinline__ void add(int slot) {
    const int column = 16 * kPairs * (warp_ % kColumns) + lane_ / 16 * 8;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int t = 16 * (warp_ / kColumns * kSteps + i);
      const auto* const labels = reinterpret_cast<const __half2*>(shared_.labels + t);
      const __half2 two = labels[lane_ % 4], more = labels[lane_ % 4 + 4];
      uint4 ones[kTiles];  // where the label is the cluster
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        ones[m] = {as_word(__heq2(two, clusters_[m][0])), as_word(__heq2(two, clusters_[m][1])),
                   as_word(__heq2(more, clusters_[m][0])), as_word(__heq2(more, clusters_[m][1]))};
      }
      const uint32_t rows = shared_address(&shared_.rows[slot][t + lane_ % 16][column]);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const uint4 b = load_transposed_matrices(rows + 32 * j);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          mma_halves(sums_[2 * j][m], ones[m], b.x, b.y);
          mma_halves(sums_[2 * j + 1][m], ones[m], b.z, b.w);
        }
      }
    }
  }

  // What this block has found, to scratch memory. All points were added.
  __device__ __forceinline__ void leave() {
#pragma unroll 1
    for (int part = 0; part < kAssignWarps / kColumns; ++part) {
      __syncthreads();
      if (warp_ / kColumns != part) continue;
#pragma unroll
      for (int j = 0; j < 2 * kPairs; ++j) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const int channel = 16 * kPairs * (warp_ % kColumns) + 8 * j + lane_ % 4 * 2;
          auto* const at = reinterpret_cast<float2*>(shared_.sums() + (16 * m + lane_ / 4) * Shared::kStride + channel);
          put(at, part > 0, sums_[j][m][0], sums_[j][m][1]);
          put(at + 8 * Shared::kStride / 2, part > 0, sums_[j][m][2], sums_[j][m][3]);
        }
      }
    }
    __syncthreads();
    float* const out = problem_.scratch.sums + static_cast<int64_t>(blockIdx.x) * kMaxClusters * D;
    for (int i = threadIdx.x; i < problem_.params.clusters * D; i += kAssignThreads) {
      out[i] = shared_.sums()[i / D * Shared::kStride + i % D];
    }
    for (int k = threadIdx.x; k < problem_.params.clusters; k += kAssignThreads) {
      problem_.scratch.sizes[blockIdx.x * kMaxClusters + k] = shared_.sizes[k];
    }
  }

 private:
  // Sums take 64 registers of a lane, or 96: as many warps share the channels of a point as that needs.
  static constexpr int kColumns = (D < 128 ? 1 : D / 64) * kTiles / 2;
  static constexpr int kPairs = D / 16 / kColumns;                           // sixteens of channels of a warp
  static constexpr int kSteps = kTileRows / 16 / (kAssignWarps / kColumns);  // sixteens of points
  static_assert(kPairs * kColumns * 16 == D && kAssignWarps % kColumns == 0);

  // The lane's r-th of the warp's rows.
  __device__ __forceinline__ int row_of(int r) const { return 16 * warp_ + lane_ / 4 + 8 * r; }
  // Of four lanes together.
  __device__ __forceinline__ float square_of(int slot, int r) const {
    float square = 0.0f;
#pragma unroll
    for (int s = 0; s < D / 32; ++s) {
      square += square_sum(*reinterpret_cast<const uint4*>(&shared_.rows[slot][row_of(r)][32 * s + lane_ % 4 * 8]));
    }
    return sum_over_columns(square);
  }

  __device__ __forceinline__ void multiply(int slot, float (&c)[2 * kTiles][4]) const {
    const int matrix = lane_ / 8, line = lane_ % 8;  // whose row the lane addresses
    const uint32_t points = shared_address(&shared_.rows[slot][16 * warp_ + lane_ % 16][lane_ / 16 * 8]);
    const uint32_t centres = shared_address(&shared_.centres[matrix / 2 * 8 + line][matrix % 2 * 8]);
#pragma unroll
    for (int s = 0; s < D / 16; ++s) {
      const uint4 a = load_matrices(points + 32 * s);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const uint4 b = load_matrices(centres + 16 * m * (2 * Shared::kStride) + 32 * s);
        mma_halves(c[2 * m], a, b.x, b.y);
        mma_halves(c[2 * m + 1], a, b.z, b.w);
      }
    }
  }

  __device__ __forceinline__ static void put(float2* at, bool adds, float x, float y) {
    const float2 before = adds ? *at : make_float2(0.0f, 0.0f);
    *at = {before.x + x, before.y + y};
  }

  const Problem<D>& problem_;
  const bool first_step_;
  Shared& shared_;
  const int lane_, warp_;
  __half2 clusters_[kTiles][2];  // that the lane has of ones
  float sums_[2 * kPairs][kTiles][4] = {};
};

template <int D, int kTiles>
__global__ void __launch_bounds__(kAssignThreads, D == 96 ? 1 : 2)
    assign_points(const __grid_constant__ StepParams request) {
  extern __shared__ __align__(16) uint8_t memory[];
  let_next_grid_start();
  const Params& params = request.params;
  const Problem<D> problem(params, blockIdx.y);
  if (!problem.present()) return;
  auto& shared = *reinterpret_cast<AssignShared<D, kTiles>*>(memory);
  Assignment<D, kTiles> assignment(problem, request.step, shared);
  const bool ahead = request.slots > 1;
  int slot = 0;
  // Points were there before seeding began, which waits for all before it, and ends before the first step begins.
  assignment.fetch(blockIdx.x * kTileRows, slot);
  wait_for_grids_before();
  if (problem.converged(request.step)) return;
  assignment.load_centres();
#pragma unroll 1
  for (int first = blockIdx.x * kTileRows; first < params.points; first += kParts * kTileRows) {
    const int next = first + kParts * kTileRows;
    wait_all_copies();
    __syncthreads();
    if (ahead) assignment.fetch(next, 1 - slot);
    assignment.label(first, slot);
    __syncthreads();
    assignment.add(slot);
    if (ahead) {
      slot = 1 - slot;
    } else {
      __syncthreads();
      assignment.fetch(next, slot);
    }
  }
  wait_all_copies();
  assignment.leave();
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
__global__ void __launch_bounds__(D, 1) update_centres(const __grid_constant__ StepParams request) {
  let_next_grid_start();
  wait_for_grids_before();
  const int step = request.step;
  const Problem<D> problem(request.params, blockIdx.y);
  if (!problem.present()) return;
  const int k = blockIdx.x, c = threadIdx.x;
  if (problem.converged(step)) {
    if (c == 0) problem.scratch.moved[step * kMaxClusters + k] = 0.0f;
    return;
  }
  static_assert(kParts == 32, "a lane asks a block");
  const auto size = [&](int cluster) {
    return sum_over_warp(problem.scratch.sizes[threadIdx.x % 32 * kMaxClusters + cluster]);
  };
  float parts[kParts];
#pragma unroll
  for (int p = 0; p < kParts; ++p)
    parts[p] = problem.scratch.sums[(static_cast<int64_t>(p) * kMaxClusters + k) * D + c];
  const float before = problem.scratch.centres[k * D + c];
  const int points = size(k);
  double sum = 0.0;
#pragma unroll
  for (const float part : parts) sum += part;
  float target;
  if (points > 0) {
    target = static_cast<float>(sum / points);
  } else {
    int empty = 0;
    for (int i = 0; i < k; ++i) empty += size(i) == 0;
    target = __half2float(__ushort_as_half(problem.point(worst_served(problem, empty, D))[c]));
  }
  const double way = static_cast<double>(target) - before;
  problem.set_centre(k, c, target);
  __shared__ double lengths[2][D / 32];
  const double moved = sum_over_warp(way * way), length = sum_over_warp(static_cast<double>(target) * target);
  if (c % 32 == 0) {
    lengths[0][c / 32] = moved;
    lengths[1][c / 32] = length;
  }
  __syncthreads();
  if (c > 0) return;
  double all[2] = {};
  for (int i = 0; i < D / 32; ++i) {
    all[0] += lengths[0][i];
    all[1] += lengths[1][i];
  }
  const double relative = all[0] == 0.0 ? 0.0 : all[1] > 0.0 ? sqrt(all[0] / all[1]) : INFINITY;
  problem.scratch.moved[step * kMaxClusters + k] = static_cast<float>(relative);
}

}  // namespace
}  // namespace kvasir::cuda
