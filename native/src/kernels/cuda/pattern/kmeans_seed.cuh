// Greedy k-means++ by the rules of base/kmeans.cc, in one launch. A cluster of blocks has a problem, and each of them a
// stretch of its sample. For a centre they meet twice: when all have told what each candidate would leave of the
// distances, and when those in whose stretches the next candidates lie have handed these out.
#pragma once

#include "kernels/cuda/pattern/kmeans_problem.cuh"
#include "kernels/cuda/primitives/cluster.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kSeedBlocks = 4;  // of a cluster: clusters of all problems of 8 heads have their place at once
constexpr int kSeedThreads = 512;
constexpr int kSeedWarps = kSeedThreads / 32;
static_assert(kSeedWarps == kCandidates, "a warp adds up for a candidate, and draws one");

// Of the shared memory of a block. Others write to `totals`, and to the candidates that are not in use.
template <int D>
struct SeedShared {
  struct Candidates {
    alignas(16) uint16_t rows[kCandidates * kCentreStride<D>];
    float norms[kCandidates];
    int points[kCandidates];
  } candidates[2];
  float totals[kSeedBlocks][kCandidates];  // what is left of the distances of a block, were the candidate taken
  float gains[kSeedWarps][kCandidates];    // the same of the rows of a warp of this block
  int chosen[kMaxClusters];                // points
  struct Row {
    int point;
    float square;
    float nearest;  // distance to the centres so far
  };
  Row rows[1];  // of the stretch

  // distances: of all rows to all candidates behind them, table_floats.
  static int bytes(int rows, bool distances) {
    return static_cast<int>(sizeof(SeedShared) + sizeof(Row) * rows) + (distances ? 4 * table_floats(rows) : 0);
  }
};

template <int D>
class Seeding {
 public:
  __device__ __forceinline__ Seeding(const Problem<D>& problem, const ClusterPlace& cluster, SeedShared<D>& shared)
      : problem_(problem),
        cluster_(cluster),
        shared_(shared),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        begin_(begin_of(cluster.rank)),
        count_(begin_of(cluster.rank + 1) - begin_),
        each_((count_ + 16 * kSeedWarps - 1) / (16 * kSeedWarps) * 16),
        distances_(cluster.blocks > 1 ? reinterpret_cast<float*>(shared.rows + count_) : problem.scratch.table) {
    for (int i = threadIdx.x; i < count_; i += kSeedThreads) shared.rows[i] = {problem.sampled(begin_ + i), 0.0f, 1.0f};
    if (warp_ == 0 && lane_ < cluster.blocks) shared.totals[lane_][0] = begin_of(lane_ + 1) - begin_of(lane_);
    if (lane_ == 0) shared.gains[warp_][0] = max(0, min(count_ - warp_ * each_, each_));
    __syncthreads();
    if (holds_all() && count_ > 0) {
#pragma unroll
      for (int t = 0; t < kHeld; ++t) load_rows(warp_ * each_ + 16 * t, held_[t]);
    }
    cluster_barrier();
  }

  // The first candidates: all rows count alike.
  __device__ __forceinline__ void start() { draw_candidates(0, 0); }

  __device__ __forceinline__ void add_centre(int round) {
    measure_rows(round);
    __syncthreads();
    tell_totals();
    cluster_barrier();
    const int best = best_candidate();
    take(best, round);
    __syncthreads();
    // Nobody writes to a block that may have ended.
    if (round + 1 < problem_.params.clusters) draw_candidates(best, round + 1);
  }

  // Blocks share the centres.
  __device__ __forceinline__ void write_centres() const {
    for (int i = threadIdx.x; i < problem_.params.clusters * D; i += kSeedThreads) {
      const int k = i / D, channel = i % D;
      if (k % cluster_.blocks != cluster_.rank) continue;
      const uint16_t half = __ldg(problem_.point(shared_.chosen[k]) + channel);
      problem_.set_centre(k, channel, __half2float(__ushort_as_half(half)));
    }
  }

 private:
  static constexpr int kHeld = D > 128 ? 1 : 2;  // tiles of 16 rows that a warp keeps in registers, if it has no more
  struct Tile {
    uint4 octets[2][D / 32];  // a lane's of rows lane / 4 and 8 on
  };

  __device__ __forceinline__ bool holds_all() const { return each_ <= 16 * kHeld; }

  // Of the stretches.
  __device__ __forceinline__ int begin_of(int rank) const { return problem_.params.sample * rank / cluster_.blocks; }

  // 16 rows, of which those beyond the stretch are its last.
  __device__ __forceinline__ void load_rows(int first, Tile& tile) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int place = min(first + lane_ / 4 + 8 * r, count_ - 1);
      const uint4* const row = reinterpret_cast<const uint4*>(problem_.point(shared_.rows[place].point));
#pragma unroll
      for (int s = 0; s < D / 32; ++s) tile.octets[r][s] = __ldg(row + 4 * s + lane_ % 4);
    }
  }

  // Distances of all rows to all candidates, and what each of these would leave.
  __device__ __forceinline__ void measure_rows(int round) {
    float sums[4] = {};  // of candidates 2j, 2j + 1, 8 + 2j, 9 + 2j, j = lane % 4
    const int first = warp_ * each_, tiles = (min(first + each_, count_) - first + 15) / 16;
    if (holds_all()) {
#pragma unroll
      for (int t = 0; t < kHeld; ++t) {
        if (t < tiles) measure_tile(first + 16 * t, held_[t], round, sums);
      }
    } else {
#pragma unroll 1
      for (int t = 0; t < tiles; ++t) {
        load_rows(first + 16 * t, held_[0]);
        measure_tile(first + 16 * t, held_[0], round, sums);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float sum = sum_over_rows(sums[i]);
      if (lane_ < 4) shared_.gains[warp_][i / 2 * 8 + 2 * lane_ + i % 2] = sum;
    }
  }

  __device__ __forceinline__ void measure_tile(int first, const Tile& tile, int round, float (&sums)[4]) {
    const auto& candidates = shared_.candidates[round % 2];
    float c[2][4] = {};
#pragma unroll
    for (int s = 0; s < D / 32; ++s) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint16_t* column = candidates.rows + (8 * n + lane_ / 4) * kCentreStride<D> + 32 * s + lane_ % 4 * 8;
        mma_octets(c[n], tile.octets[0][s], tile.octets[1][s], *reinterpret_cast<const uint4*>(column));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int place = first + lane_ / 4 + 8 * r;
      float square = 0.0f;
      if (round == 0) {
#pragma unroll
        for (int s = 0; s < D / 32; ++s) square += square_sum(tile.octets[r][s]);
        square = sum_over_columns(square);
      }
      if (place >= count_) continue;
      auto& row = shared_.rows[place];
      if (round > 0) square = row.square;
      if (round == 0 && lane_ % 4 == 0) row.square = square;
      const float nearest = round == 0 ? INFINITY : row.nearest;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int candidate = i / 2 * 8 + 2 * (lane_ % 4) + i % 2;
        const float distance = fmaxf(square + candidates.norms[candidate] - 2.0f * c[i / 2][2 * r + i % 2], 0.0f);
        distances_[candidate * table_stride(count_) + place] = distance;
        sums[i] += fminf(distance, nearest);
      }
    }
  }

  // To all blocks what this one has found: a warp for a candidate.
  __device__ __forceinline__ void tell_totals() {
    const float total = sum_over_warp(lane_ < kSeedWarps ? shared_.gains[lane_][warp_] : 0.0f);
    if (lane_ < cluster_.blocks) *of_block(&shared_.totals[cluster_.rank][warp_], lane_) = total;
  }

  // The same in all threads of the cluster.
  __device__ __forceinline__ int best_candidate() const {
    int best = lane_ % kCandidates;
    float total = 0.0f;
    for (int b = 0; b < cluster_.blocks; ++b) total += shared_.totals[b][best];
    least_over_lanes<kCandidates>(total, best);
    return best;
  }

  // The candidate becomes centre `round`.
  __device__ __forceinline__ void take(int best, int round) {
    for (int i = threadIdx.x; i < count_; i += kSeedThreads) {
      const float distance = distances_[best * table_stride(count_) + i];
      float& nearest = shared_.rows[i].nearest;
      nearest = round == 0 ? distance : fminf(nearest, distance);
    }
    if (threadIdx.x == 0) shared_.chosen[round] = shared_.candidates[round % 2].points[best];
  }

  // Candidates for centre `round`, a warp each: points of the sample, with probability proportional to `nearest`, of
  // which totals[..][best] and gains[..][best] are the sums. Ends with a barrier of the cluster.
  __device__ __forceinline__ void draw_candidates(int best, int round) {
    const int sample = problem_.params.sample, blocks = cluster_.blocks;
    const uint64_t index = static_cast<uint64_t>(sample) + static_cast<uint64_t>(round) * kCandidates + warp_;
    float all = 0.0f;
    for (int b = 0; b < blocks; ++b) all += shared_.totals[b][best];
    float target = static_cast<float>(random_number(problem_.params.seed, index)) * all;
    int block = 0;
    for (; block < blocks - 1 && target >= shared_.totals[block][best]; ++block) target -= shared_.totals[block][best];
    if (block == cluster_.rank) hand_out(round, shared_.rows[place_of(target, best)].point);
    cluster_barrier();
  }

  // The point becomes the candidate of this warp, in all blocks.
  __device__ __forceinline__ void hand_out(int round, int point) {
    auto& candidates = shared_.candidates[round % 2];
    uint4 octet = {};
    if (lane_ < D / 8) octet = __ldg(reinterpret_cast<const uint4*>(problem_.point(point)) + lane_);
    const float norm = sum_over_warp(square_sum(octet));
    for (int b = 0; b < cluster_.blocks; ++b) {
      auto* const row = reinterpret_cast<uint4*>(candidates.rows + warp_ * kCentreStride<D>);
      if (lane_ < D / 8) *of_block(row + lane_, b) = octet;
      if (lane_ == 0) *of_block(&candidates.norms[warp_], b) = norm;
      if (lane_ == 1) *of_block(&candidates.points[warp_], b) = point;
    }
  }

  // The first row at which the sum of `nearest` passes the target, the last if none does.
  __device__ __forceinline__ int place_of(float target, int best) const {
    const float of_warp = lane_ < kSeedWarps ? shared_.gains[lane_][best] : 0.0f;
    const int warp = find(of_warp, &target);
    if (warp < 0) return count_ - 1;
    const int end = min((warp + 1) * each_, count_);
    for (int first = warp * each_; first < end; first += 32) {
      const int lane = find(first + lane_ < end ? shared_.rows[first + lane_].nearest : 0.0f, &target);
      if (lane >= 0) return first + lane;
    }
    return max(end - 1, 0);
  }

  // The first lane at which the sum of numbers passes the target, which becomes what is left of it before that lane;
  // -1 where none does, and what is left behind all.
  __device__ __forceinline__ int find(float number, float* target) const {
    float sum = number;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane_ >= step) sum += other;
    }
    const unsigned passed = __ballot_sync(0xffffffffu, number > 0.0f && sum > *target);
    const int lane = __ffs(static_cast<int>(passed)) - 1;
    *target -= __shfl_sync(0xffffffffu, lane < 0 ? sum : sum - number, lane < 0 ? 31 : lane);
    return lane;
  }

  const Problem<D>& problem_;
  const ClusterPlace& cluster_;
  SeedShared<D>& shared_;
  const int lane_, warp_;
  const int begin_, count_;  // of the sample
  const int each_;           // rows of a warp
  float* const distances_;   // [kCandidates][table_stride(count_)]
  Tile held_[kHeld];
};

template <int D>
__global__ void __launch_bounds__(kSeedThreads) seed_centres(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) uint8_t memory[];
  const ClusterPlace cluster = cluster_place();
  const Problem<D> problem(params, blockIdx.x / cluster.blocks);
  if (!problem.present()) return;
  Seeding<D> seeding(problem, cluster, *reinterpret_cast<SeedShared<D>*>(memory));
  seeding.start();
#pragma unroll 1
  for (int round = 0; round < params.clusters; ++round) seeding.add_centre(round);
  seeding.write_centres();
}

}  // namespace
}  // namespace kvasir::cuda
