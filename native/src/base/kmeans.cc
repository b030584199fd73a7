#include "base/kmeans.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

namespace kvasir {
namespace {

// Points per task. Fixed, because sums are taken per task and then in order.
constexpr int64_t kChunk = 512;
constexpr int64_t kSeedPointsPerCluster = 64;
// Sums are kept for as many runs of chunks as this holds: for each chunk of its own, unless there are many clusters.
constexpr int64_t kMostSums = int64_t{1} << 24;

// SplitMix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // Uniform in [0, 1).
  double next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }

 private:
  uint64_t state_;
};

class KMeans {
 public:
  KMeans(const float* points, int64_t count, int dim, const KMeansOptions& options, const MatchKernels& kernels,
         ThreadPool& threads, float* centres)
      : points_(points),
        count_(count),
        dim_(dim),
        clusters_(static_cast<int>(std::min<int64_t>(options.clusters, count))),
        options_(options),
        kernels_(kernels),
        threads_(threads),
        centres_(centres),
        chunks_((count + kChunk - 1) / kChunk),
        runs_(std::clamp<int64_t>(kMostSums / (int64_t{clusters_} * dim), 1, chunks_)),
        labels_(static_cast<size_t>(count)),
        distances_(static_cast<size_t>(count)),
        blocks_(match_block_floats(clusters_, dim)),
        sums_(static_cast<size_t>(runs_) * clusters_ * dim),
        sizes_(static_cast<size_t>(runs_) * clusters_) {}

  KMeansResult run() {
    seed();
    assign();
    int step = 0;
    while (step < options_.max_steps) {
      ++step;
      const double moved = update();
      assign();
      if (moved <= options_.tolerance) break;
    }
    return {clusters_, step, objective()};
  }

  const std::vector<int>& labels() const { return labels_; }

 private:
  const float* point(int64_t i) const { return points_ + static_cast<size_t>(i) * dim_; }
  float* centre(int k) { return centres_ + static_cast<size_t>(k) * dim_; }

  template <class Task>
  void for_chunks(Task task) {
    threads_.run(static_cast<int>(chunks_), [&](int chunk) {
      const int64_t begin = chunk * kChunk;
      task(chunk, begin, std::min(begin + kChunk, count_));
    });
  }

  // Greedy k-means++: candidates for each further centre are points drawn with probability proportional to their
  // squared distance to the nearest centre so far, and the one that lowers the sum of these the most is taken. An even
  // sample of the points is enough to draw from, and a block of candidates costs as much as one.
  void seed() {
    const int64_t sample = std::min(count_, int64_t{clusters_} * kSeedPointsPerCluster);
    std::vector<float> points(static_cast<size_t>(sample) * dim_);
    Random random(options_.seed);
    for (int64_t i = 0; i < sample; ++i) {
      // Anywhere in the i-th of equal stretches: an exact stride could fall into step with the data.
      const double place = (static_cast<double>(i) + random.next()) * static_cast<double>(count_) / sample;
      const int64_t source = sample == count_ ? i : std::min(static_cast<int64_t>(place), count_ - 1);
      std::memcpy(&points[static_cast<size_t>(i) * dim_], point(source), sizeof(float) * dim_);
    }
    std::vector<float> nearest(static_cast<size_t>(sample), 1.0f);  // all alike for the first draw
    std::vector<float> candidates(static_cast<size_t>(kMatchBlock) * dim_);
    std::vector<float> block(match_block_floats(kMatchBlock, dim_));
    std::vector<float> table(static_cast<size_t>(sample) * kMatchBlock);
    for (int k = 0; k < clusters_; ++k) {
      const double total = std::accumulate(nearest.begin(), nearest.end(), 0.0);
      for (int i = 0; i < kMatchBlock; ++i) {
        const int64_t drawn = draw(nearest, random.next() * total);
        std::memcpy(&candidates[static_cast<size_t>(i) * dim_], &points[static_cast<size_t>(drawn) * dim_],
                    sizeof(float) * dim_);
      }
      make_match_blocks(candidates.data(), kMatchBlock, dim_, block.data());
      kernels_.squared_table(points.data(), static_cast<int>(sample), dim_, block.data(), table.data());
      if (k == 0) std::fill(nearest.begin(), nearest.end(), INFINITY);
      double sums[kMatchBlock] = {};
      for (int64_t p = 0; p < sample; ++p) {
        for (int i = 0; i < kMatchBlock; ++i) sums[i] += std::min(nearest[p], table[p * kMatchBlock + i]);
      }
      const int64_t best = std::min_element(sums, sums + kMatchBlock) - sums;
      for (int64_t p = 0; p < sample; ++p) nearest[p] = std::min(nearest[p], table[p * kMatchBlock + best]);
      std::memcpy(centre(k), &candidates[static_cast<size_t>(best) * dim_], sizeof(float) * dim_);
    }
  }

  // The first index whose running sum of weights passes `target`.
  static int64_t draw(const std::vector<float>& weights, double target) {
    const int64_t last = static_cast<int64_t>(weights.size()) - 1;
    int64_t i = 0;
    while (i < last && (target -= weights[i]) >= 0) ++i;
    return i;
  }

  void assign() {
    make_match_blocks(centres_, clusters_, dim_, blocks_.data());
    for_chunks([&](int, int64_t begin, int64_t end) {
      kernels_.squared(point(begin), static_cast<int>(end - begin), dim_, blocks_.data(), clusters_, &labels_[begin],
                       &distances_[begin]);
    });
  }

  // Moves every centre to the mean of its points; returns the largest relative move.
  double update() {
    threads_.run(static_cast<int>(runs_), [&](int run) {
      const int64_t begin = run * chunks_ / runs_ * kChunk;
      const int64_t end = std::min((run + 1) * chunks_ / runs_ * kChunk, count_);
      float* sums = &sums_[static_cast<size_t>(run) * clusters_ * dim_];
      int* sizes = &sizes_[static_cast<size_t>(run) * clusters_];
      std::fill(sums, sums + static_cast<size_t>(clusters_) * dim_, 0.0f);
      std::fill(sizes, sizes + clusters_, 0);
      for (int64_t i = begin; i < end; ++i) {
        float* sum = sums + static_cast<size_t>(labels_[i]) * dim_;
        const float* x = point(i);
        for (int c = 0; c < dim_; ++c) sum[c] += x[c];
        ++sizes[labels_[i]];
      }
    });
    double largest = 0;
    std::vector<double> mean(dim_);
    for (int k = 0; k < clusters_; ++k) {
      std::fill(mean.begin(), mean.end(), 0.0);
      int64_t size = 0;
      for (int64_t run = 0; run < runs_; ++run) {
        const float* sum = &sums_[(static_cast<size_t>(run) * clusters_ + k) * dim_];
        for (int c = 0; c < dim_; ++c) mean[c] += sum[c];
        size += sizes_[static_cast<size_t>(run) * clusters_ + k];
      }
      if (size == 0) {
        take_farthest_point(mean);
      } else {
        for (double& c : mean) c /= static_cast<double>(size);
      }
      double moved = 0, length = 0;
      for (int c = 0; c < dim_; ++c) {
        const auto target = static_cast<float>(mean[c]);
        const double step = static_cast<double>(target) - centre(k)[c];
        moved += step * step;
        length += static_cast<double>(target) * target;
        centre(k)[c] = target;
      }
      if (moved > 0) largest = std::max(largest, length > 0 ? std::sqrt(moved / length) : INFINITY);
    }
    return largest;
  }

  // A cluster without points restarts at the point that is worst served; that point then serves nobody else so.
  void take_farthest_point(std::vector<double>& centre) {
    const int64_t farthest = std::max_element(distances_.begin(), distances_.end()) - distances_.begin();
    for (int c = 0; c < dim_; ++c) centre[c] = point(farthest)[c];
    distances_[farthest] = 0;
  }

  double objective() const {
    double sum = 0;
    for (float distance : distances_) sum += distance;
    return sum;
  }

  const float* points_;
  const int64_t count_;
  const int dim_;
  const int clusters_;
  const KMeansOptions& options_;
  const MatchKernels& kernels_;
  ThreadPool& threads_;
  float* centres_;
  const int64_t chunks_;
  const int64_t runs_;  // of chunks, whose sums are taken together
  std::vector<int> labels_;
  std::vector<float> distances_;
  std::vector<float> blocks_;  // the centres, as searches want them
  std::vector<float> sums_;    // [runs][clusters][dim]
  std::vector<int> sizes_;     // [runs][clusters]
};

}  // namespace

KMeansResult kmeans(const float* points, int64_t count, int dim, const KMeansOptions& options,
                    const MatchKernels& kernels, ThreadPool& threads, float* centres, int* labels) {
  KMeans problem(points, count, dim, options, kernels, threads, centres);
  const KMeansResult result = problem.run();
  if (labels) std::copy(problem.labels().begin(), problem.labels().end(), labels);
  return result;
}

}  // namespace kvasir
