// Two results of attention become one, by their log-sums: kvasir/attend.h's merge_attention on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kvasir/types.h"

namespace kvasir::cuda {

struct ResultMerge {
  int64_t rows;  // tokens times query heads
  int width;
  ElementType type;
  void* outputs;  // [rows][width]: of the one, and of both
  const void* others;
  const float* sums;  // [rows]
  const float* other_sums;
  float* log_sums;  // [rows]: of both; null: not wanted
};

cudaError_t launch_merge_results(const ResultMerge& merge, cudaStream_t stream);

}  // namespace kvasir::cuda
