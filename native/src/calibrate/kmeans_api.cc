#include <cmath>
#include <string>

#include "base/checked.h"
#include "base/kmeans.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"
#include "kvasir/kmeans.h"

namespace kvasir {
namespace {

// Squared distances in float32 stay finite, and far from those to the vectors that fill up match blocks.
constexpr float kMaxPoint = 1e15f;

void check_range(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw Error(ErrorCode::kInvalidArgument, std::string(what) + " must be " + std::to_string(low) + ".." +
                                                 std::to_string(high) + ", not " + std::to_string(value));
  }
}

}  // namespace

double kmeans(const float* points, int64_t count, int dim, int clusters, int max_steps, int64_t seed, float* centres,
              int* labels) {
  check_range("count", count, 1, INT32_MAX);
  check_range("dim", dim, 16, 1024);
  check_range("clusters", clusters, 1, 65536);
  check_range("max_steps", max_steps, 0, 1000000);
  if (dim % 16 != 0)
    throw Error(ErrorCode::kInvalidArgument, "dim must be a multiple of 16, not " + std::to_string(dim));
  if (!points || !centres) throw Error(ErrorCode::kInvalidArgument, "points or centres are null");
  const int64_t elements = checked_multiply(count, dim, "count times dim");
  for (int64_t i = 0; i < elements; ++i) {
    // Negated, so that NaN is refused too.
    if (!(std::fabs(points[i]) <= kMaxPoint)) {
      throw Error(ErrorCode::kNotFinite, "points hold NaN, infinity or a magnitude above 1e15");
    }
  }
  KMeansOptions options;
  options.clusters = clusters;
  options.max_steps = max_steps;
  options.seed = static_cast<uint64_t>(seed);
  return kmeans(points, count, dim, options, resolve_match(backend_index("auto")), ThreadPool::shared(), centres,
                labels)
      .objective;
}

}  // namespace kvasir
