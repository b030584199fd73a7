// Which channel of a page gets how many bits: codecs/tiered/formula.h, by a block of threads for each kv head of a
// page, a thread for each channel. Compiled without contraction (CMakeLists.txt): the arithmetic is the host's.
//
// Tiers are cut by saliency, so they are known by the channels' ranks and two counts. One case is different: a channel
// that BUDGET gives up is the first of those with the least saliency, and its rank may be followed by equals that stay.
#include <cuda_fp16.h>

#include "codecs/tiered/formula.h"
#include "codecs/tiered/parameters.h"
#include "kernels/cuda/tiered/seal.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
static_assert(kThreads >= kMaxHeadDim, "a thread for each channel");

struct Params {
  PageFormat format;
  const uint16_t* rows;   // of kv head 0
  int64_t head_elements;  // from one kv head's rows to the next one's
  const float* importance;
  TierChoices choices;
};

struct Shared {
  uint16_t low[kTokenSpans][kMaxHeadDim], high[kTokenSpans][kMaxHeadDim];  // float16
  float saliency[kMaxHeadDim];
  double sum;
  float least;
  int wider[2][kWarps];  // channels of 16 and of 4 bits, by warp
};

struct Cut {
  int n16, n4;
  int given_up;  // rank of a channel that has 2 bits although others of its saliency have 4; -1: none
};

__device__ __forceinline__ float float_of(uint16_t half) { return __half2float(__ushort_as_half(half)); }

// Extremes of each channel over each 32 tokens.
__device__ __forceinline__ void find_extremes(const uint16_t* rows, int d, Shared& shared) {
  const int pairs = d / 2;
  for (int i = threadIdx.x; i < kTokenSpans * pairs; i += kThreads) {
    const int pair = i % pairs, group = i / pairs;
    const auto* from = reinterpret_cast<const __half2*>(rows + static_cast<int64_t>(group) * 32 * d) + pair;
    __half2 low = from[0], high = low;
#pragma unroll 8
    for (int t = 1; t < 32; ++t) {
      const __half2 x = from[static_cast<int64_t>(t) * pairs];
      low = __hmin2(low, x);
      high = __hmax2(high, x);
    }
    *reinterpret_cast<__half2*>(&shared.low[group][2 * pair]) = low;
    *reinterpret_cast<__half2*>(&shared.high[group][2 * pair]) = high;
  }
}

// All threads; those beyond the channels have a saliency of -1, which is above nothing.
__device__ __forceinline__ Cut cut_by_budget(float saliency, int rank, int d, float mean_bits, Shared& shared) {
  const float target = mean_bits * static_cast<float>(d);
  uint32_t low = 0, high = 0x7f800000;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const float limit = __uint_as_float(middle);
    const int n16 = __syncthreads_count(saliency > tiered::kLimitRatio * limit);
    const int n4 = __syncthreads_count(saliency > limit) - n16;
    if (static_cast<float>(tiered::code_bits(d, n16, n4)) <= target) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const float limit = __uint_as_float(low);
  Cut cut = {__syncthreads_count(saliency > tiered::kLimitRatio * limit), 0, -1};
  cut.n4 = __syncthreads_count(saliency > limit) - cut.n16;
  // Whole bits are left: what a float of them may not pass is what they may not pass.
  const int left = static_cast<int>(target) - tiered::code_bits(d, cut.n16, cut.n4);
  const int some = __syncthreads_count(saliency > 0.0f) - cut.n16 - cut.n4;
  cut.n4 += min(left / 2, some);
  const int n2 = d - cut.n16 - cut.n4;
  if (n2 == 0 && cut.n4 > 0 && static_cast<float>(tiered::code_bits(d, cut.n16, cut.n4) + 6) <= target) {
    ++cut.n16;
    --cut.n4;
  } else if (n2 > 0 && cut.n4 % tiered::kColumnsPerVector == 1) {
    if (rank == cut.n16 + cut.n4 - 1) shared.least = saliency;
    __syncthreads();
    cut.given_up = max(cut.n16, __syncthreads_count(saliency > shared.least));
  }
  return cut;
}

__device__ __forceinline__ Cut cut_by_thresholds(float saliency, int d, const PageFormat& format, Shared& shared) {
  double unit = 1.0;
  if (static_cast<int>(format.numbers[tiered::kMode]) == tiered::kNormalised) {
    if (threadIdx.x == 0) {
      double sum = 0.0;
      for (int i = 0; i < d; ++i) sum += static_cast<double>(shared.saliency[i]);
      shared.sum = sum;
    }
    __syncthreads();
    unit = shared.sum / d;
  }
  const double limit16 = static_cast<double>(format.numbers[tiered::kTau16]) * unit;
  const double limit4 = static_cast<double>(format.numbers[tiered::kTau4]) * unit;
  const bool is16 = static_cast<double>(saliency) > limit16;
  const bool is4 = !is16 && static_cast<double>(saliency) > limit4;
  const int n16 = __syncthreads_count(is16);
  return {n16, __syncthreads_count(is4), -1};
}

struct Extremes {
  float low, high;
};
// A channel's extremes over `count` times 32 tokens.
__device__ __forceinline__ Extremes extremes_of(const Shared& shared, int channel, int first, int count) {
  float low = float_of(shared.low[first][channel]), high = float_of(shared.high[first][channel]);
  for (int g = first + 1; g < first + count; ++g) {
    low = fminf(low, float_of(shared.low[g][channel]));
    high = fmaxf(high, float_of(shared.high[g][channel]));
  }
  return {low, high};
}

__global__ void __launch_bounds__(kThreads) choose(const __grid_constant__ Params params) {
  __shared__ Shared shared;
  const PageFormat& format = params.format;
  const int d = format.head_dim, thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y);
  const int64_t part = static_cast<int64_t>(blockIdx.x) * gridDim.y + head;
  const uint16_t* rows = params.rows + head * params.head_elements + static_cast<int64_t>(blockIdx.x) * kPageTokens * d;
  find_extremes(rows, d, shared);
  __syncthreads();

  const bool present = thread < d;
  float saliency = -1.0f;
  if (present) {
    const Extremes all = extremes_of(shared, thread, 0, kTokenSpans);
    const float step = (all.high - all.low) / 3.0f;
    saliency = params.importance == nullptr ? step : params.importance[head * d + thread] * step;
    shared.saliency[thread] = saliency;
  }
  __syncthreads();
  // Channels that come before this one: of greater saliency, or equal and earlier.
  int rank = present ? 0 : kThreads;
  for (int i = 0; present && i < d; ++i) {
    const float other = shared.saliency[i];
    rank += other > saliency || (other == saliency && i < thread);
  }
  Cut cut = static_cast<int>(format.numbers[tiered::kMode]) == tiered::kBudget
                ? cut_by_budget(saliency, rank, d, format.numbers[tiered::kKeyBits], shared)
                : cut_by_thresholds(saliency, d, format, shared);
  int wide = cut.n16 + cut.n4;  // ranks below it have more than 2 bits, but for a channel that was given up
  if (cut.given_up >= 0) --cut.n4;
  while (cut.n4 % tiered::kColumnsPerVector != 0 && wide < d) {
    ++cut.n4;
    ++wide;
  }
  const bool is16 = rank < cut.n16, is4 = !is16 && rank < wide && rank != cut.given_up;

  // Places: tier by tier, ascending.
  const int warp = thread / 32, lane = thread % 32;
  const uint32_t below = (1u << lane) - 1;
  const uint32_t of16 = __ballot_sync(0xffffffffu, is16), of4 = __ballot_sync(0xffffffffu, is4);
  if (lane == 0) {
    shared.wider[0][warp] = __popc(of16);
    shared.wider[1][warp] = __popc(of4);
  }
  __syncthreads();
  if (thread == 0) params.choices.counts[part] = {static_cast<uint16_t>(cut.n16), static_cast<uint16_t>(cut.n4)};
  if (!present) return;
  int before16 = __popc(of16 & below), before4 = __popc(of4 & below);
  for (int w = 0; w < warp; ++w) {
    before16 += shared.wider[0][w];
    before4 += shared.wider[1][w];
  }
  const int place = is16 ? before16 : is4 ? cut.n16 + before4 : cut.n16 + cut.n4 + thread - before16 - before4;
  params.choices.channels[part * d + place] = static_cast<uint8_t>(thread);

  const int slots = format.group / 32;  // of 32 tokens that share parameters
  uint32_t* const parameters = params.choices.parameters + part * kTokenSpans * d + thread;
  for (int first = 0; first < kTokenSpans; first += slots) {
    const Extremes group = extremes_of(shared, thread, first, slots);
    const uniform::Parameters stored = tiered::parameters_of(format, group.low, group.high);
    for (int g = first; g < first + slots; ++g) parameters[g * d] = stored.range | uint32_t{stored.lo} << 16;
  }
}

size_t aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

size_t tier_choice_bytes(const RowShape& shape, int64_t page_count) {
  const size_t parts = static_cast<size_t>(page_count) * shape.kv_heads, d = static_cast<size_t>(shape.head_dim);
  return aligned(parts * sizeof(TierCounts)) + aligned(parts * kTokenSpans * d * sizeof(uint32_t)) + parts * d;
}

TierChoices tier_choices(const RowShape& shape, int64_t page_count, void* scratch) {
  const size_t parts = static_cast<size_t>(page_count) * shape.kv_heads, d = static_cast<size_t>(shape.head_dim);
  auto* memory = static_cast<uint8_t*>(scratch);
  TierChoices choices = {};
  choices.counts = reinterpret_cast<TierCounts*>(memory);
  memory += aligned(parts * sizeof(TierCounts));
  choices.parameters = reinterpret_cast<uint32_t*>(memory);
  choices.channels = memory + aligned(parts * kTokenSpans * d * sizeof(uint32_t));
  return choices;
}

cudaError_t choose_tiers(const TieredSealRequest& request, const TierChoices& choices, cudaStream_t stream) {
  const int d = request.shape.head_dim, group = request.keys.group;
  if (d < 2 || d > kMaxHeadDim || d % 2 != 0 || request.shape.kv_heads > 65535) return cudaErrorInvalidValue;
  if (group != 32 && group != 64 && group != 128) return cudaErrorInvalidValue;
  if (request.page_count <= 0) return cudaSuccess;
  Params params = {};
  params.format = request.keys;
  params.rows = request.staging.sides[0];
  params.head_elements = request.staging.rows * d;
  params.importance = request.keys.numbers[tiered::kQueries] != 0.0f ? request.importance : nullptr;
  params.choices = choices;
  const dim3 grid(static_cast<unsigned>(request.page_count), static_cast<unsigned>(request.shape.kv_heads));
  choose<<<grid, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
