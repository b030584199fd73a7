// What the kernels of k-means share. A problem is one side of one kv head.
#pragma once

#include <cuda_fp16.h>

#include <cmath>

#include "kernels/cuda/layout/labels.h"
#include "kernels/cuda/pattern/seal.h"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/uniform.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kMaxClusters = 64;
constexpr int kMaxSteps = 100;
constexpr int kMaxSample = 64 * kMaxClusters;
constexpr int kCandidates = 16;  // of a seeding round
constexpr int kParts = 32;       // blocks of a problem

// Distances of rows of the sample to candidates, [kCandidates][table_stride]: lanes that write those of four pairs of
// candidates meet all banks of shared memory.
__host__ __device__ constexpr int table_stride(int rows) { return (rows + 31) / 32 * 32 + 4; }
__host__ __device__ constexpr int table_floats(int rows) { return kCandidates * table_stride(rows); }

// What a problem needs of scratch memory; pointers are to its own.
struct Scratch {
  float* centres;    // [kMaxClusters][D]
  float* sums;       // [kParts][kMaxClusters][D]
  int* sizes;        // [kParts][kMaxClusters]
  float* moved;      // [kMaxSteps][kMaxClusters]
  float* table;      // table_floats, where a block has all of the sample
  float* squares;    // [points]: of their lengths
  float* distances;  // [points]
};

__host__ __device__ constexpr int64_t scratch_floats(int d, int64_t points) {
  return static_cast<int64_t>(kMaxClusters) * d * (1 + kParts) + kParts * kMaxClusters + kMaxSteps * kMaxClusters +
         table_floats(kMaxSample) + (points + 63) / 64 * 64 * 2;
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
  VectorMemory vectors[2];
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
    scratch.table = take(table_floats(kMaxSample));
    scratch.squares = take(params.points);
    scratch.distances = take(params.points);
  }
  __device__ bool present() const { return params.vectors[side].vectors != nullptr; }
  __device__ const uint16_t* point(int64_t i) const {
    return rows + (params.tokens == params.points ? i : i * params.tokens / params.points) * D;
  }
  // Which point the i-th of the sample is: any in the i-th of equal stretches.
  __device__ int sampled(int i) const {
    if (params.sample == params.points) return i;
    const double place = (i + random_number(params.seed, i)) * params.points / params.sample;
    return min(static_cast<int>(place), params.points - 1);
  }

  // Whether the step before this one moved nothing far. A whole warp.
  __device__ bool converged(int step) const {
    if (step == 0) return false;
    const float* const moved = scratch.moved + (step - 1) * kMaxClusters;
    bool far = false;
    for (int k = threadIdx.x % 32; k < params.clusters; k += 32) far = far || moved[k] > params.tolerance;
    return !any_lane(far);
  }
  __device__ void set_centre(int k, int channel, float value) const {
    scratch.centres[k * D + channel] = value;
    constexpr VectorTableLayout kLayout = {D};
    const int64_t byte = side == 0 ? kLayout.key_byte(k, channel) : kLayout.value_byte(k, channel);
    const VectorMemory& table = params.vectors[side];
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

}  // namespace
}  // namespace kvasir::cuda
