// Greedy k-means++ by the rules of base/kmeans.cc: a launch for each centre. Blocks share the sample; the last of them
// to be done chooses the centre, and draws candidates for the next.
#pragma once

#include "kernels/cuda/pattern/kmeans_problem.cuh"

namespace kvasir::cuda {
namespace {

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

// Candidates in shared memory.
template <int D>
struct SeedShared {
  alignas(16) uint16_t rows[kCandidates * kCentreStride<D>];
  float norms[kCandidates];
  double gains[kSeedThreads / 32][kCandidates];  // sums of distances of each warp's rows; later of all rows
};

template <int D>
__device__ __forceinline__ void load_candidates(const Problem<D>& problem, SeedShared<D>& shared) {
  for (int i = threadIdx.x; i < kCandidates * D / 8; i += kSeedThreads) {
    const int candidate = i / (D / 8), octet = i % (D / 8);
    const uint4* row = reinterpret_cast<const uint4*>(problem.sampled(problem.scratch.drawn[candidate]));
    *reinterpret_cast<uint4*>(shared.rows + candidate * kCentreStride<D> + octet * 8) = __ldg(row + octet);
  }
}

template <int D>
__device__ __forceinline__ void measure_candidates(SeedShared<D>& shared, int warp, int lane) {
  for (int k = warp; k < kCandidates; k += kSeedThreads / 32) {
    float norm = 0.0f;
    if (lane < D / 8) norm = square_sum(*reinterpret_cast<const uint4*>(shared.rows + k * kCentreStride<D> + lane * 8));
    norm = sum_over_warp(norm);
    if (lane == 0) shared.norms[k] = norm;
  }
}

// The last block's work: the best of all candidates becomes centre `round`. Ends with a barrier.
template <int D>
__device__ __forceinline__ void take_best(const Problem<D>& problem, int round, SeedShared<D>& shared) {
  const int thread = threadIdx.x;
  __shared__ int best;
  if (thread < kCandidates) {
    double sum = 0.0;
    for (unsigned p = 0; p < gridDim.x; ++p) sum += __ldcg(problem.scratch.gains + p * kCandidates + thread);
    shared.gains[0][thread] = sum;
  }
  __syncthreads();
  if (thread == 0) {
    *problem.scratch.done = 0;
    best = 0;
    for (int i = 1; i < kCandidates; ++i) best = shared.gains[0][i] < shared.gains[0][best] ? i : best;
  }
  __syncthreads();
  for (int i = thread; i < problem.params.sample; i += kSeedThreads) {
    const float distance = __ldcg(problem.scratch.table + i * kCandidates + best);
    problem.scratch.nearest[i] = round == 0 ? distance : fminf(problem.scratch.nearest[i], distance);
  }
  for (int channel = thread; channel < D; channel += kSeedThreads) {
    const uint16_t half = shared.rows[best * kCentreStride<D> + channel];
    problem.set_centre(round, channel, __half2float(__ushort_as_half(half)));
  }
  __syncthreads();
}

// One centre. A block takes kSeedRows of the sample.
template <int D>
__global__ void __launch_bounds__(kSeedThreads) seed_centre(const __grid_constant__ Params params, int round) {
  const Problem<D> problem(params, blockIdx.y);
  if (!problem.present()) return;
  __shared__ SeedShared<D> shared;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, sample = params.sample;
  load_candidates(problem, shared);
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
    square[r] = sum_over_columns(square[r]);
  }
  __syncthreads();
  measure_candidates(shared, warp, lane);
  __syncthreads();
  float c[2][4] = {};
#pragma unroll
  for (int s = 0; s < D / 32; ++s) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint16_t* column = shared.rows + (8 * n + lane / 4) * kCentreStride<D> + 32 * s + lane % 4 * 8;
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
      const float distance = fmaxf(square[r] + shared.norms[candidate] - 2.0f * c[i / 2][2 * r + i % 2], 0.0f);
      problem.scratch.table[rows[r] * kCandidates + candidate] = distance;
      sums[i] += fminf(distance, nearest);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    for (int mask = 4; mask < 32; mask *= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], mask);
    if (lane < 4) shared.gains[warp][i / 2 * 8 + 2 * lane + i % 2] = sums[i];
  }
  __syncthreads();
  if (thread < kCandidates) {
    double sum = 0.0;
    for (int w = 0; w < kSeedThreads / 32; ++w) sum += shared.gains[w][thread];
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
  take_best(problem, round, shared);
  draw_candidates(problem, round + 1);
}

}  // namespace
}  // namespace kvasir::cuda
