// k-means on tensor cores. A problem is one side of one kv head.
//
//   seed      a launch for each centre: blocks share the sample, and the last to be done chooses the centre and draws
//             candidates for the next
//   assign    blocks share a problem's points: nearest centres, and sums of the points of each
//   update    one block a centre: the mean, and how far it moved
//
// Distances are |x|^2 - 2 <x, c> + |c|^2: points are float16 and exact, centres are split into two float16 numbers,
// sums are float32. Sums of points are products with a matrix of ones and zeros made from the labels. Steps after the
// one that converged do nothing.
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/kmeans.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/pattern_layout.h"

namespace kvasir::cuda {
namespace {

constexpr int kMaxClusters = 64;
constexpr int kMaxSteps = 100;
constexpr int kMaxSample = 64 * kMaxClusters;
constexpr int kCandidates = 16;  // of a seeding round
constexpr int kParts = 32;       // blocks of a problem
constexpr int kTileRows = 128;   // points of a block at a time
constexpr int kSeedThreads = 256;
constexpr int kSeedRows = kSeedThreads / 2;  // of the sample, a block: 16 a warp
constexpr int kSeedParts = kMaxSample / kSeedRows;
constexpr int kAssignThreads = 256;

// What a problem needs of scratch memory; pointers are to its own.
struct Scratch {
  float* centres;    // [kMaxClusters][D]
  float* sums;       // [kParts][kMaxClusters][D]
  int* sizes;        // [kParts][kMaxClusters]
  float* moved;      // [kMaxSteps][kMaxClusters]
  float* table;      // [kMaxSample][kCandidates]: distances of the sample to candidates
  float* nearest;    // [kMaxSample]: to the centres so far
  double* gains;     // [kSeedParts][kCandidates]: sums over the sample, were the candidate taken
  int* drawn;        // [kCandidates]: of the sample
  unsigned* done;    // blocks of this round
  float* distances;  // [points]
};

__host__ __device__ constexpr int64_t scratch_floats(int d, int64_t points) {
  return static_cast<int64_t>(kMaxClusters) * d * (1 + kParts) + kParts * kMaxClusters + kMaxSteps * kMaxClusters +
         kMaxSample * (kCandidates + 1) + 2 * kSeedParts * kCandidates + 64 + (points + 63) / 64 * 64;
}

struct Params {
  const uint16_t* rows[2];  // of kv head 0
  int64_t head_elements;
  int64_t tokens;
  int points;
  int heads;
  int clusters;
  int sample;
  float tolerance;
  uint64_t seed;
  PatternVectors vectors[2];
  float* scratch;
};

// Number `index` of the sequence of base/kmeans.cc, uniform in [0, 1).
__device__ double random_number(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

template <int D>
struct Problem {
  const Params& params;
  int side, head;
  const uint16_t* rows;
  Scratch scratch;

  __device__ Problem(const Params& params, int index)
      : params(params),
        side(index / params.heads),
        head(index % params.heads),
        rows(params.rows[side] + head * params.head_elements) {
    float* at = params.scratch + index * scratch_floats(D, params.points);
    auto take = [&](int64_t floats) {
      float* taken = at;
      at += floats;
      return taken;
    };
    scratch.centres = take(kMaxClusters * D);
    scratch.sums = take(static_cast<int64_t>(kParts) * kMaxClusters * D);
    scratch.sizes = reinterpret_cast<int*>(take(kParts * kMaxClusters));
    scratch.moved = take(kMaxSteps * kMaxClusters);
    scratch.table = take(kMaxSample * kCandidates);
    scratch.nearest = take(kMaxSample);
    scratch.gains = reinterpret_cast<double*>(take(2 * kSeedParts * kCandidates));
    scratch.drawn = reinterpret_cast<int*>(take(32));
    scratch.done = reinterpret_cast<unsigned*>(take(32));
    scratch.distances = take(params.points);
  }
  __device__ bool present() const { return params.vectors[side].vectors != nullptr; }
  __device__ const uint16_t* point(int64_t i) const {
    return rows + (params.tokens == params.points ? i : i * params.tokens / params.points) * D;
  }
  // Of the sample: anywhere in the i-th of equal stretches.
  __device__ const uint16_t* sampled(int i) const {
    if (params.sample == params.points) return point(i);
    const double place = (i + random_number(params.seed, i)) * params.points / params.sample;
    return point(min(static_cast<int>(place), params.points - 1));
  }

  // Whether the step before this one moved nothing far.
  __device__ bool converged(int step) const {
    if (step == 0) return false;
    for (int k = 0; k < params.clusters; ++k) {
      if (scratch.moved[(step - 1) * kMaxClusters + k] > params.tolerance) return false;
    }
    return true;
  }
  __device__ void set_centre(int k, int channel, float value) const {
    scratch.centres[k * D + channel] = value;
    constexpr PatternTableLayout kLayout = {D};
    const int64_t byte = side == 0 ? kLayout.key_byte(k, channel) : kLayout.value_byte(k, channel);
    const PatternVectors& table = params.vectors[side];
    *reinterpret_cast<uint16_t*>(table.vectors + head * table.head_stride + byte) =
        __half_as_ushort(__float2half_rn(value));
  }
};

__device__ __forceinline__ float square_sum(const uint4& octet) {
  const uint32_t words[4] = {octet.x, octet.y, octet.z, octet.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = halves_to_floats(words[i]);
    sum = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, sum));
  }
  return sum;
}

// Channels inside a step of 32 may be in any order, if it is the same for points and centres: lane k of a row takes
// eight neighbours with one load, and two mma use them.
__device__ __forceinline__ void mma_octets(float (&c)[4], const uint4& row, const uint4& row8, const uint4& column) {
  mma_halves(c, make_uint4(row.x, row8.x, row.y, row8.y), column.x, column.y);
  mma_halves(c, make_uint4(row.z, row8.z, row.w, row8.w), column.z, column.w);
}

// Rows of centres in shared memory are padded so that eight lanes of a 128-bit load meet all banks.
template <int D>
constexpr int kCentreStride = D % 64 == 0 ? D + 32 : D;

// Inclusive sums over the threads of a block, in shared memory.
__device__ void scan_block(double value, double* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int step = 1; step < 32; step *= 2) {
    const double other = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value += other;
  }
  __shared__ double totals[kSeedThreads / 32];
  if (lane == 31) totals[warp] = value;
  __syncthreads();
  double before = 0.0;
  for (int w = 0; w < warp; ++w) before += totals[w];
  sums[threadIdx.x] = before + value;
  __syncthreads();
}

// Candidates for the next centre: points of the sample, with probability proportional to `nearest`. All threads.
template <int D>
__device__ void draw_candidates(const Problem<D>& problem, int round) {
  __shared__ double scan[kSeedThreads];
  const int thread = threadIdx.x, sample = problem.params.sample;
  const int each = (sample + kSeedThreads - 1) / kSeedThreads;  // neighbours of a thread
  const int begin = min(thread * each, sample), end = min(begin + each, sample);
  const float* nearest = problem.scratch.nearest;
  double sum = 0.0;
  for (int i = begin; i < end; ++i) sum += nearest[i];
  if (thread < kCandidates) problem.scratch.drawn[thread] = sample - 1;
  scan_block(sum, scan);
  const double before = thread == 0 ? 0.0 : scan[thread - 1], after = scan[thread];
  __shared__ double targets[kCandidates];
  if (thread < kCandidates) {
    const uint64_t index = static_cast<uint64_t>(sample) + static_cast<uint64_t>(round) * kCandidates + thread;
    targets[thread] = random_number(problem.params.seed, index) * scan[kSeedThreads - 1];
  }
  __syncthreads();
  for (int i = 0; i < kCandidates; ++i) {
    if (targets[i] < before || targets[i] >= after) continue;
    double passed = before;
    int at = begin;
    while (at < end - 1 && (passed += nearest[at]) <= targets[i]) ++at;
    problem.scratch.drawn[i] = at;
  }
}

template <int D>
__global__ void __launch_bounds__(kSeedThreads) start_seeding(const __grid_constant__ Params params) {
  const Problem<D> problem(params, blockIdx.x);
  if (!problem.present()) return;
  for (int i = threadIdx.x; i < params.sample; i += kSeedThreads) problem.scratch.nearest[i] = 1.0f;
  if (threadIdx.x == 0) *problem.scratch.done = 0;
  __syncthreads();
  draw_candidates(problem, 0);
}

// One centre. A block takes kSeedRows of the sample.
template <int D>
__global__ void __launch_bounds__(kSeedThreads) seed_centre(const __grid_constant__ Params params, int round) {
  const Problem<D> problem(params, blockIdx.y);
  if (!problem.present()) return;
  __shared__ alignas(16) uint16_t candidates[kCandidates * kCentreStride<D>];
  __shared__ float norms[kCandidates];
  __shared__ double gains[kSeedThreads / 32][kCandidates];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, sample = params.sample;
  for (int i = thread; i < kCandidates * D / 8; i += kSeedThreads) {
    const int candidate = i / (D / 8), octet = i % (D / 8);
    const uint4* row = reinterpret_cast<const uint4*>(problem.sampled(problem.scratch.drawn[candidate]));
    *reinterpret_cast<uint4*>(candidates + candidate * kCentreStride<D> + octet * 8) = __ldg(row + octet);
  }
  const int first = static_cast<int>(blockIdx.x) * kSeedRows + 16 * warp + lane / 4;
  const int rows[2] = {first, first + 8};
  uint4 octets[2][D / 32];
  float square[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint4* row = reinterpret_cast<const uint4*>(problem.sampled(min(rows[r], sample - 1)));
#pragma unroll
    for (int s = 0; s < D / 32; ++s) octets[r][s] = __ldg(row + 4 * s + lane % 4);
#pragma unroll
    for (int s = 0; s < D / 32; ++s) square[r] += square_sum(octets[r][s]);
    square[r] += __shfl_xor_sync(0xffffffffu, square[r], 1);
    square[r] += __shfl_xor_sync(0xffffffffu, square[r], 2);
  }
  __syncthreads();
  for (int k = warp; k < kCandidates; k += kSeedThreads / 32) {
    float norm = 0.0f;
    if (lane < D / 8) norm = square_sum(*reinterpret_cast<const uint4*>(candidates + k * kCentreStride<D> + lane * 8));
    norm = sum_over_warp(norm);
    if (lane == 0) norms[k] = norm;
  }
  __syncthreads();
  float c[2][4] = {};
#pragma unroll
  for (int s = 0; s < D / 32; ++s) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint16_t* column = candidates + (8 * n + lane / 4) * kCentreStride<D> + 32 * s + lane % 4 * 8;
      mma_octets(c[n], octets[0][s], octets[1][s], *reinterpret_cast<const uint4*>(column));
    }
  }
  double sums[4] = {};  // of candidates 2j, 2j + 1, 8 + 2j, 9 + 2j, j = lane % 4
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (rows[r] >= sample) continue;
    const float nearest = round == 0 ? INFINITY : problem.scratch.nearest[rows[r]];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int candidate = i / 2 * 8 + 2 * (lane % 4) + i % 2;
      const float distance = fmaxf(square[r] + norms[candidate] - 2.0f * c[i / 2][2 * r + i % 2], 0.0f);
      problem.scratch.table[rows[r] * kCandidates + candidate] = distance;
      sums[i] += fminf(distance, nearest);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    for (int mask = 4; mask < 32; mask *= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], mask);
    if (lane < 4) gains[warp][i / 2 * 8 + 2 * lane + i % 2] = sums[i];
  }
  __syncthreads();
  if (thread < kCandidates) {
    double sum = 0.0;
    for (int w = 0; w < kSeedThreads / 32; ++w) sum += gains[w][thread];
    problem.scratch.gains[blockIdx.x * kCandidates + thread] = sum;
  }
  // The block that is last to be done sees what the others wrote.
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (thread == 0) last = atomicAdd(problem.scratch.done, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  __shared__ int best;
  if (thread < kCandidates) {
    double sum = 0.0;
    for (unsigned p = 0; p < gridDim.x; ++p) sum += __ldcg(problem.scratch.gains + p * kCandidates + thread);
    gains[0][thread] = sum;
  }
  __syncthreads();
  if (thread == 0) {
    *problem.scratch.done = 0;
    best = 0;
    for (int i = 1; i < kCandidates; ++i) best = gains[0][i] < gains[0][best] ? i : best;
  }
  __syncthreads();
  for (int i = thread; i < sample; i += kSeedThreads) {
    const float distance = __ldcg(problem.scratch.table + i * kCandidates + best);
    problem.scratch.nearest[i] = round == 0 ? distance : fminf(problem.scratch.nearest[i], distance);
  }
  for (int channel = thread; channel < D; channel += kSeedThreads) {
    const uint16_t half = candidates[best * kCentreStride<D> + channel];
    problem.set_centre(round, channel, __half2float(__ushort_as_half(half)));
  }
  __syncthreads();
  draw_candidates(problem, round + 1);
}

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
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best[r], mask);
      const int its = __shfl_xor_sync(0xffffffffu, label[r], mask);
      square[r] += __shfl_xor_sync(0xffffffffu, square[r], mask);
      if (other < best[r] || (other == best[r] && its < label[r])) {
        best[r] = other;
        label[r] = its;
      }
    }
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

template <int D>
cudaError_t mine(const Params& params, int max_steps, cudaStream_t stream) {
  const int problems = 2 * params.heads;
  const int assign_bytes = AssignShared<D>::bytes(params.clusters);
  const cudaError_t error = cudaFuncSetAttribute(assign_points<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 AssignShared<D>::bytes(kMaxClusters));
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
  switch (d) {
    case 64:
      return mine<64>(params, request.max_steps, stream);
    case 96:
      return mine<96>(params, request.max_steps, stream);
    case 128:
      return mine<128>(params, request.max_steps, stream);
    default:
      return mine<256>(params, request.max_steps, stream);
  }
}

}  // namespace kvasir::cuda
