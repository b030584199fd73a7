// Positions, turns and numbers that the kernels of CommVQ share.
#pragma once

#include "kernels/cuda/commvq/params.h"
#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/primitives/softmax.cuh"

namespace kvasir::cuda {

// e^(i position * turns * 2 pi), for turns per position: reduced in double, so that far positions are as good as near
// ones.
__device__ __forceinline__ float2 turn_of(int64_t position, double turns) {
  const double whole = static_cast<double>(position) * turns;
  const auto rest = static_cast<float>(whole - rint(whole));
  float2 turn;
  sincospif(2.0f * rest, &turn.y, &turn.x);
  return turn;
}

// What a token's number must be shifted by to be its position.
__device__ __forceinline__ int64_t shift_of(const CommVqSequence& sequence, int64_t token) {
  int64_t offset = 0;
  for (int64_t i = 0; i < sequence.shift_count && sequence.shifts[i].first <= token; ++i) {
    offset = sequence.shifts[i].offset;
  }
  return offset;
}

// The channels of a RoPE pair.
__device__ __forceinline__ int first_channel(const CommVqParams& params, int pair) {
  return params.neighbours ? 2 * pair : pair;
}
__device__ __forceinline__ int second_channel(const CommVqParams& params, int pair) {
  return params.neighbours ? 2 * pair + 1 : pair + params.tables.head_dim / 2;
}

// Stays where it is written: the compiler would put each load right before its use, and wait for it there.
__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address));
  return words;
}

// Pages of all sequences before sequence `end`. A whole warp.
__device__ __forceinline__ int64_t pages_before(const CommVqParams& params, int end, int lane) {
  int64_t sum = 0;
  for (int i = lane; i < end; i += 32) sum += params.sequences[i].page_count;
  return sum_over_warp(sum);
}

}  // namespace kvasir::cuda
