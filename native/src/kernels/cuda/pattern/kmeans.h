// Mines patterns: Euclidean k-means over float16 rows, all kv heads and both sides at once, on the device alone.
//
// The rules are those of base/kmeans.h: greedy k-means++ seeding from an even sample, Lloyd steps until no centre moves
// by more than `tolerance`, clusters without points restart at the point that is worst served; centres are rounded to
// float16 at the end. Equal input gives equal bits; the host's sums are in another order, so its bits may differ.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/pattern/seal.h"

namespace kvasir::cuda {

struct MiningRequest {
  RowShape shape;  // head dims 64, 96, 128 and 256
  Staging staging;
  int64_t first_row;
  int64_t tokens;   // rows first_row .. first_row + tokens - 1, at least 1
  int64_t points;   // of them, evenly spread, 1..tokens: what is clustered
  int clusters;     // 1..64; min(clusters, points) vectors are written
  int max_steps;    // 1..100
  float tolerance;  // relative to the centre's length
  uint64_t seed;
  VectorMemory vectors[2];  // keys, values; of vector 0
  void* scratch;            // mining_scratch_bytes, 256-byte aligned
};

// Whether the current device has the shared memory for any number of clusters: 100 KB with 256 channels, 61 with 128.
bool mines_patterns(int head_dim);

size_t mining_scratch_bytes(const RowShape& shape, int64_t points);
cudaError_t mine_patterns(const MiningRequest& request, cudaStream_t stream);

}  // namespace kvasir::cuda
