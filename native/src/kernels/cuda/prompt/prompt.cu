#include <algorithm>
#include <cmath>

#include "kernels/cuda/primitives/hopper.h"
#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/primitives/softmax.cuh"
#include "kernels/cuda/prompt/hopper/hopper.h"
#include "kernels/cuda/prompt/instance.h"
#include "kernels/cuda/prompt/prompt.h"

namespace kvasir::cuda {
namespace {

constexpr int kWantedBlocks = 256;  // two for each processor of a large device
constexpr int kMaxSplits = 32;
constexpr int kWarps = 4;
[[maybe_unused]] constexpr int kHopperRows = 128;  // of a kv head, from which on two warp groups have work

const PromptInstance& instance_of(int head_dim) {
  return head_dim <= 64 ? prompt_64 : head_dim <= 128 ? prompt_128 : prompt_256;
}

// How a launch divides its work.
struct PromptDivision {
  int rows;    // query rows of a kv head
  int splits;  // of a part's tokens
};
PromptDivision division_of(const PromptRequest& request) {
  const int block_rows = instance_of(request.head_dim).rows;
  PromptDivision division;
  division.rows = request.tokens * request.group;
  const int blocks = (division.rows + block_rows - 1) / block_rows * request.kv_heads;
  division.splits = std::clamp(kWantedBlocks / blocks, 1, kMaxSplits);
  return division;
}

PromptKernel kernel_for(const PromptRequest& request, [[maybe_unused]] int rows) {
#ifdef KVASIR_HOPPER
  const bool one_weight = request.precision == PromptPrecision::kFast || request.precision == PromptPrecision::kExact;
  if (one_weight && request.head_dim <= 128 && rows >= kHopperRows && on_hopper()) {
    return request.head_dim <= 64 ? hopper_prompt_64(request) : hopper_prompt_128(request);
  }
#endif
  return instance_of(request.head_dim).kernel_for(request);
}

// A warp merges the splits of one row.
__global__ void __launch_bounds__(32 * kWarps)
    prompt_finish(const __grid_constant__ PromptRequest request, int rows, int splits) {
  const int row = blockIdx.x * kWarps + threadIdx.x / 32, kv_head = blockIdx.y, d = request.head_dim;
  if (row >= rows) return;
  const auto state_of = [&](int split) {
    const int64_t index = (static_cast<int64_t>(split) * request.kv_heads + kv_head) * rows + row;
    return request.states + index * (d + kPromptStateHead);
  };
  float peak = -INFINITY, sum = 0.0f;
  for (int s = 0; s < splits; ++s) peak = fmaxf(peak, state_of(s)[0]);
  const float reference = finite_reference(peak);
  for (int s = 0; s < splits; ++s) sum += state_of(s)[1] * exp2f(state_of(s)[0] - reference);
  const int64_t head = static_cast<int64_t>(row / request.group) * request.kv_heads * request.group +
                       kv_head * request.group + row % request.group;
  // Weights are 2^kWeightExponent times what they are relative to the reference.
  const RowEnd end = end_row(request.ends, request.kv_heads * request.group, head, reference - kWeightExponent, sum,
                             threadIdx.x % 32 == 0);
  for (int c = threadIdx.x % 32; c < d; c += 32) {
    float output = 0.0f;
    for (int s = 0; s < splits; ++s) output += state_of(s)[kPromptStateHead + c] * exp2f(state_of(s)[0] - reference);
    const float weighted = output * end.gain;
    store_number(request.outputs, request.type, head * d + c, end.sum > 0.0f ? weighted / end.sum : 0.0f);
  }
}

bool known(const PromptRequest& request) {
  const int d = request.head_dim;
  return d >= 32 && d <= 256 && d % 16 == 0 && request.kv_heads > 0 && request.group > 0 && request.tokens > 0;
}

}  // namespace

size_t prompt_state_bytes(const PromptRequest& request) {
  const PromptDivision division = division_of(request);
  return sizeof(float) * static_cast<size_t>(division.splits) * request.kv_heads * division.rows *
         (request.head_dim + kPromptStateHead);
}

cudaError_t launch_prompt_part(const PromptRequest& request, const PromptRows& rows, bool first, cudaStream_t stream) {
  const bool low = has_low_keys(request.precision);
  if (!known(request) || (rows.tokens > 0 && low != (rows.keys_low != nullptr))) return cudaErrorInvalidValue;
  if (rows.tokens == 0 && !first) return cudaSuccess;
  const PromptDivision division = division_of(request);
  const PromptKernel chosen = kernel_for(request, division.rows);
  const cudaError_t error =
      cudaFuncSetAttribute(chosen.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, chosen.shared_bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid((division.rows + chosen.rows - 1) / chosen.rows, request.kv_heads, division.splits);
  chosen.kernel<<<grid, chosen.threads, chosen.shared_bytes, stream>>>(request, rows, division.rows, first);
  return cudaGetLastError();
}

cudaError_t launch_prompt_finish(const PromptRequest& request, cudaStream_t stream) {
  if (!known(request)) return cudaErrorInvalidValue;
  const PromptDivision division = division_of(request);
  prompt_finish<<<dim3((division.rows + kWarps - 1) / kWarps, request.kv_heads), 32 * kWarps, 0, stream>>>(
      request, division.rows, division.splits);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
