// Euclidean k-means: k-means++ seeding, Lloyd steps, repair of empty clusters.
//
// The result depends on the points and the seed alone: not on the number of threads, nor on the backend.
#pragma once

#include <cstdint>

#include "base/match.h"
#include "base/thread_pool.h"

namespace kvasir {

struct KMeansOptions {
  int clusters = 32;
  int max_steps = 30;
  // Stops when no centre moved by more than this, relative to its length.
  double tolerance = 1e-4;
  uint64_t seed = 1;
};

struct KMeansResult {
  int clusters;      // min(options.clusters, count)
  int steps;         // Lloyd steps done
  double objective;  // sum of squared distances of the points to their centres
};

// points: [count][dim], dim a multiple of 16, count >= 1. centres: [options.clusters][dim], the first result.clusters
// are written. labels: [count], or null.
KMeansResult kmeans(const float* points, int64_t count, int dim, const KMeansOptions& options,
                    const MatchKernels& kernels, ThreadPool& threads, float* centres, int* labels);

}  // namespace kvasir
