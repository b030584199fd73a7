// The kernels that are compiled, as a table: each instance file defines one row.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attend/types.h"

namespace kvasir::cuda {

// One head dim and number of query heads (4 * tiles) of a segment.
struct AttendInstance {
  int (*max_consumers)(PageKinds pages);
  int partial_floats;
  int block_partials;  // of a block, in the workspace: two, and a distant front for each warp
  // Shared memory of a block.
  int (*shared_bytes)(PageKinds pages, int consumers, int slots, int cached, const AttendShape& shape);
  // Lets blocks have that much, and says whether launches may overlap.
  cudaError_t (*prepare)(int shared_bytes, bool* overlaps);
  // overlaps: may start before the grids before it have ended; the kernel waits for them. Code for sm_90 and up can.
  cudaError_t (*launch)(const AttendParams& params, int blocks, int shared_bytes, bool overlaps, cudaStream_t stream);
  // Fills params.room.terms, before the former.
  cudaError_t (*launch_terms)(const AttendParams& params, bool overlaps, cudaStream_t stream);
};

extern const AttendInstance attend_64_4, attend_64_8, attend_96_4, attend_128_4, attend_128_8, attend_256_4;

}  // namespace kvasir::cuda
