// k-means, as PatternKV mines its patterns with it; also for analysis of keys and values on its own.
#pragma once

#include <cstdint>

namespace kvasir {

// Euclidean k-means with greedy k-means++ seeding, Lloyd steps until no centre moves by more than 1e-4 of its length or
// max_steps are done, and repair of empty clusters.
//
//   points   [count][dim], none above 1e15 in magnitude; dim a multiple of 16 in 16..1024, count 1..2^31-1
//   centres  [clusters][dim]; the first min(clusters, count) are written
//   labels   [count]: the nearest centre of each point; or null
//
// Returns the sum of the squared distances of all points to their nearest centres. Work is spread over the library's
// threads; the result depends on points, clusters, max_steps and seed alone. Throws kInvalidArgument or kNotFinite.
double kmeans(const float* points, int64_t count, int dim, int clusters, int max_steps, int64_t seed, float* centres,
              int* labels);

}  // namespace kvasir
