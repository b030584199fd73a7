#include <algorithm>
#include <cmath>

#include "kernels/cuda/primitives/hopper.h"
#include "kernels/cuda/primitives/numbers.cuh"
#include "kernels/cuda/primitives/shared_memory.h"
#include "kernels/cuda/primitives/softmax.cuh"
#include "kernels/cuda/prompt/hopper/hopper.h"
#include "kernels/cuda/prompt/instance.h"
#include "kernels/cuda/prompt/prompt.h"

namespace kvasir::cuda {
namespace {

constexpr int kProcessors = 132;  // of a large device
constexpr int kMostSplits = 32;   // a lane looks at each
constexpr int kMostChannels = 256;
constexpr int64_t kPartTokens = 8192, kTileTokens = 128;
constexpr float kBlockTiles = 4.0f;  // that a block takes as long for as for all that it does but once
constexpr int kWarps = 4;
[[maybe_unused]] constexpr int kHopperRows = 128;  // of a kv head, from which on two warp groups have work

// By head dims in steps of 16.
const PromptInstance& instance_of(int head_dim) {
  static const PromptInstance* const kInstances[] = {&prompt_80, &prompt_96, &prompt_112, &prompt_128};
  return head_dim <= 64 ? prompt_64 : head_dim <= 128 ? *kInstances[head_dim / 16 - 5] : prompt_256;
}

int rows_of(const PromptRequest& request) { return request.tokens * request.group; }

// Whether the kernel is one with products of warp groups. Known by the prompt alone.
bool by_warp_groups([[maybe_unused]] const PromptRequest& request) {
#ifdef KVASIR_HOPPER
  const bool one_weight = request.precision == PromptPrecision::kFast || request.precision == PromptPrecision::kExact;
  return one_weight && request.head_dim <= 128 && rows_of(request) >= kHopperRows && on_hopper();
#else
  return false;
#endif
}

// Blocks that share the work on a row. Known by the prompt alone, because sums depend on it.
int splits_of(const PromptRequest& request) {
  const int block_rows = instance_of(request.head_dim).rows;
  const int blocks = (rows_of(request) + block_rows - 1) / block_rows * request.kv_heads;
  const int at_once = by_warp_groups(request) ? kProcessors : 2 * kProcessors;
  const int64_t tokens = request.part_tokens > 0 ? request.part_tokens : kPartTokens;
  const auto tiles = static_cast<int>((tokens + kTileTokens - 1) / kTileTokens);
  const auto time_of = [&](int splits) {
    const int turns = (blocks * splits + at_once - 1) / at_once;
    return static_cast<float>(turns) * (static_cast<float>((tiles + splits - 1) / splits) + kBlockTiles);
  };
  int best = 1;
  for (int splits = 2; splits <= std::min(tiles, kMostSplits); ++splits) {
    if (time_of(splits) < 0.9f * time_of(best)) best = splits;
  }
  return best;
}

PromptKernel kernel_for(const PromptRequest& request) {
#ifdef KVASIR_HOPPER
  if (by_warp_groups(request)) {
    constexpr PromptKernel (*kKernels[])(const PromptRequest&) = {
        hopper_prompt<32>, hopper_prompt<48>,  hopper_prompt<64>, hopper_prompt<80>,
        hopper_prompt<96>, hopper_prompt<112>, hopper_prompt<128>};
    return kKernels[request.head_dim / 16 - 2](request);
  }
#endif
  return instance_of(request.head_dim).kernel_for(request);
}

// A warp merges the splits of one row: first a lane looks at each, then all take the channels of one after the other.
__global__ void __launch_bounds__(32 * kWarps) prompt_finish(const __grid_constant__ PromptLaunch launch) {
  const LaunchedPrompt& prompt = launch.prompts[launch.prompt_of(blockIdx.x)];
  const int row = (blockIdx.x - prompt.first_block) * kWarps + threadIdx.x / 32, kv_head = blockIdx.y;
  const int d = launch.head_dim, heads = launch.kv_heads * launch.group, lane = threadIdx.x % 32;
  if (row >= prompt.row_count) return;
  const int64_t apart = static_cast<int64_t>(launch.kv_heads) * prompt.row_count * (d + kPromptStateHead);
  const float* const states =
      prompt.states + (static_cast<int64_t>(kv_head) * prompt.row_count + row) * (d + kPromptStateHead);
  float2 head = make_float2(-INFINITY, 0.0f);
  if (lane < prompt.splits) head = *reinterpret_cast<const float2*>(states + lane * apart);
  const float reference = finite_reference(max_over_warp(head.x)), factor = exp2f(head.x - reference);
  const float sum = sum_over_warp(head.y * factor);
  float outputs[kMostChannels / 32] = {};
#pragma unroll 4
  for (int s = 0; s < prompt.splits; ++s) {
    const float* const from = states + s * apart + kPromptStateHead;
    const float weight = __shfl_sync(0xffffffffu, factor, s);
#pragma unroll
    for (int i = 0; i < kMostChannels / 32; ++i) {
      if (32 * i + lane < d) outputs[i] += from[32 * i + lane] * weight;
    }
  }
  const int64_t query = static_cast<int64_t>(row / launch.group) * heads + kv_head * launch.group + row % launch.group;
  // Weights are 2^kWeightExponent times what they are relative to the reference.
  const RowEnd end =
      end_row({launch.sink_logits, prompt.log_sums}, heads, query, reference - kWeightExponent, sum, lane == 0);
#pragma unroll
  for (int i = 0; i < kMostChannels / 32; ++i) {
    const int c = 32 * i + lane;
    if (c >= d) continue;
    const float weighted = outputs[i] * end.gain;
    store_number(prompt.outputs, launch.type, query * d + c, end.sum > 0.0f ? weighted / end.sum : 0.0f);
  }
}

bool known(const PromptRequest& request) {
  const int d = request.head_dim;
  if (reinterpret_cast<uintptr_t>(request.queries) % 16 != 0) return false;
  return d >= 32 && d <= 256 && d % 16 == 0 && request.kv_heads > 0 && request.group > 0 && request.tokens > 0;
}

// Whether one launch may take both.
bool alike(const PromptRequest& a, const PromptRequest& b) {
  return a.kv_heads == b.kv_heads && a.group == b.group && a.head_dim == b.head_dim && a.type == b.type &&
         a.precision == b.precision && a.sliding_window == b.sliding_window && a.scale == b.scale &&
         a.soft_cap == b.soft_cap && a.ends.sink_logits == b.ends.sink_logits;
}

// Prompts for one kernel: launched as soon as there are as many as one launch takes, and in the end.
class Launcher {
 public:
  Launcher(const PromptRequest& request, const PromptKernel& kernel, cudaStream_t stream)
      : kernel_(kernel), stream_(stream) {
    launch_.kv_heads = request.kv_heads;
    launch_.group = request.group;
    launch_.head_dim = request.head_dim;
    launch_.type = request.type;
    launch_.reach = request.sliding_window > 0 ? near(request.sliding_window) : kFar;
    launch_.scale = request.scale;
    launch_.soft_cap = request.soft_cap;
    launch_.sink_logits = request.ends.sink_logits;
  }

  // splits: whether blocks share the work on a row.
  cudaError_t add(const PromptPart& part, bool splits) {
    const PromptRequest& request = part.request;
    LaunchedPrompt& prompt = launch_.prompts[launch_.count++];
    prompt.first_block = blocks_;
    prompt.row_count = rows_of(request);
    prompt.splits = splits_of(request);
    prompt.first = part.first;
    prompt.newest = near(request.first_query - part.rows.position);
    prompt.masked_from = near(request.masked_from - part.rows.position);
    prompt.queries = request.queries;
    prompt.outputs = request.outputs;
    prompt.states = request.states;
    prompt.log_sums = request.ends.log_sums;
    prompt.masks = request.masks;
    prompt.rows = part.rows;
    blocks_ += (prompt.row_count + kernel_.rows - 1) / kernel_.rows * (splits ? prompt.splits : 1);
    return launch_.count < kMostPrompts ? cudaSuccess : launch();
  }

  cudaError_t launch() {
    if (launch_.count == 0) return cudaSuccess;
    if (kernel_.shared_bytes > 0) {
      const cudaError_t error = allow_shared_memory(kernel_.kernel, kernel_.shared_bytes);
      if (error != cudaSuccess) return error;
    }
    kernel_.kernel<<<dim3(blocks_, launch_.kv_heads), kernel_.threads, kernel_.shared_bytes, stream_>>>(launch_);
    launch_.count = blocks_ = 0;
    return cudaGetLastError();
  }

 private:
  static int near(int64_t tokens) { return static_cast<int>(std::clamp<int64_t>(tokens, -kFar, kFar)); }

  const PromptKernel kernel_;
  const cudaStream_t stream_;
  PromptLaunch launch_ = {};
  int blocks_ = 0;
};

}  // namespace

size_t prompt_state_bytes(const PromptRequest& request) {
  return sizeof(float) * static_cast<size_t>(splits_of(request)) * request.kv_heads * rows_of(request) *
         (request.head_dim + kPromptStateHead);
}

cudaError_t launch_prompt_parts(const PromptPart* parts, int count, cudaStream_t stream) {
  for (int i = 0; i < count; ++i) {
    const PromptPart& part = parts[i];
    const bool low = has_low_keys(part.request.precision);
    if (!known(part.request) || !alike(part.request, parts[0].request)) return cudaErrorInvalidValue;
    if (part.rows.tokens > 0 && low != (part.rows.keys_low != nullptr)) return cudaErrorInvalidValue;
  }
  for (const bool warp_groups : {true, false}) {
    const PromptPart* const end = parts + count;
    const auto wanted = [&](const PromptPart& part) {
      return by_warp_groups(part.request) == warp_groups && (part.rows.tokens > 0 || part.first);
    };
    const PromptPart* part = std::find_if(parts, end, wanted);
    if (part == end) continue;
    Launcher launcher(part->request, kernel_for(part->request), stream);
    for (; part != end; part = std::find_if(part + 1, end, wanted)) {
      const cudaError_t error = launcher.add(*part, true);
      if (error != cudaSuccess) return error;
    }
    const cudaError_t error = launcher.launch();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_prompt_finishes(const PromptRequest* requests, int count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  Launcher launcher(requests[0], {prompt_finish, kWarps, 32 * kWarps, 0}, stream);
  for (int i = 0; i < count; ++i) {
    if (!known(requests[i]) || !alike(requests[i], requests[0])) return cudaErrorInvalidValue;
    const cudaError_t error = launcher.add({requests[i], {}, false}, false);
    if (error != cudaSuccess) return error;
  }
  return launcher.launch();
}

}  // namespace kvasir::cuda
