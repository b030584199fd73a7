// Bits of CommVQ's values: the verbs `decide` and `flip` of base/codebook.h. Compiled without contraction
// (CMakeLists.txt): the arithmetic is the host's, operation by operation.
//
// Both lower s K s - 2 h s for the bits s of a token, K the products of the codebook's rows, and carry its slopes
// K s - h along.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/commvq/value_parts.h"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/shared_memory.h"

namespace kvasir::cuda {
namespace {

constexpr int kPanel = 32;  // bits that are decided together
constexpr int kTokens = 16;
constexpr int kThreads = 256;
constexpr int kWarpTokens = kTokens / (kThreads / 32);
constexpr int kFour = 4;

// A panel's own part of the gram, 0 where there are no more bits.
__device__ __forceinline__ void load_corner(const ValueSearch& search, int first, int count,
                                            float (&corner)[kPanel][kPanel]) {
  const int codes = search.page.codes;
  for (int i = threadIdx.x; i < kPanel * kPanel; i += kThreads) {
    const int bit = i / kPanel, n = i % kPanel;
    const bool there = bit < count && n < count;
    corner[bit][n] = there ? __ldg(search.gram + static_cast<int64_t>(first + bit) * codes + first + n) : 0.0f;
  }
}

// Decides the bits of a panel for the tokens of a warp, one after the other: a lane has each bit's slope and limit.
__device__ __forceinline__ void decide_panel(const float (&corner)[kPanel][kPanel], int count, float limit,
                                             float (&slope)[kWarpTokens], uint32_t (&bits)[kWarpTokens], int lane) {
  for (int bit = 0; bit < count; ++bit) {
    const float step = corner[bit][lane];
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) {
      if (!__shfl_sync(0xffffffffu, -slope[i] > limit, bit)) continue;
      slope[i] += step;
      bits[i] |= 1u << bit;
    }
  }
}

// Whether bit n is set depends on those before it. A panel of bits is decided by its own corner of the gram, a lane for
// each bit; then all slopes take the panel's rows at once, which is a product of 0s and 1s with the gram.
//
// A thread has four slopes of each token, and keeps them where no other needs them: kResident, up to 1024 codes.
template <bool kResident>
__global__ void __launch_bounds__(kThreads, 2) decide(ValueSearch search, ValueScratch scratch) {
  __shared__ float corner[kPanel][kPanel];
  __shared__ float set[kPanel][kTokens];
  __shared__ float next[kTokens][kPanel];  // slopes of the panel
  const int codes = search.page.codes, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, own = kFour * static_cast<int>(threadIdx.x);
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) * kTokens;
  float* const slopes = scratch.slopes + first_token * codes;
  float4 all[kTokens];
  const auto load = [&](int n) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      all[t] = *reinterpret_cast<const float4*>(slopes + static_cast<int64_t>(t) * codes + n);
    }
  };
  const auto store = [&](int n) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      *reinterpret_cast<float4*>(slopes + static_cast<int64_t>(t) * codes + n) = all[t];
    }
  };
  const auto show = [&](int n, int first) {
    if (n < first || n >= first + kPanel) return;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) *reinterpret_cast<float4*>(&next[t][n - first]) = all[t];
  };
  if (own < codes) {
    load(own);
    show(own, 0);
  }

  for (int first = 0; first < codes; first += kPanel) {
    const int count = min(kPanel, codes - first);
    load_corner(search, first, count, corner);
    __syncthreads();

    float slope[kWarpTokens];
    uint32_t bits[kWarpTokens] = {};
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) slope[i] = next[warp * kWarpTokens + i][lane];
    const float limit = lane < count ? __ldg(search.thresholds + first + lane) * corner[lane][lane] : 0.0f;
    decide_panel(corner, count, limit, slope, bits, lane);
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) {
      const int token = warp * kWarpTokens + i;
      set[lane][token] = (bits[i] >> lane & 1) != 0 ? 1.0f : 0.0f;
      if (lane == 0) scratch.bits[(first_token + token) * scratch.words + first / kPanel] = bits[i];
    }
    __syncthreads();

    for (int n = own; n < codes; n += kFour * kThreads) {
      if constexpr (!kResident) load(n);
      const float* const steps = search.gram + static_cast<int64_t>(first) * codes + n;
#pragma unroll 4
      for (int bit = 0; bit < count; ++bit) {
        const float4 step = __ldg(reinterpret_cast<const float4*>(steps + static_cast<int64_t>(bit) * codes));
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float factor = set[bit][t];  // 0 or 1: fused or not, the sum is the same
          all[t].x = fmaf(factor, step.x, all[t].x);
          all[t].y = fmaf(factor, step.y, all[t].y);
          all[t].z = fmaf(factor, step.z, all[t].z);
          all[t].w = fmaf(factor, step.w, all[t].w);
        }
      }
      show(n, first + kPanel);
      if constexpr (!kResident) store(n);
    }
  }
  if (kResident && own < codes) store(own);
}

// The change of the error that is least, and the first four bits with one that makes it.
struct Least {
  float change = INFINITY;
  int first = 0;

  __device__ __forceinline__ void add(const float4& changes, int at) {
    const float least = fminf(fminf(changes.x, changes.y), fminf(changes.z, changes.w));
    if (least < change) change = least, first = at;
  }
};

// One token's descent: a warp's work. Fused additions are those whose products are exact.
class Descent {
 public:
  // memory: 2 * codes floats.
  __device__ Descent(const ValueSearch& search, float* memory)
      : search_(search),
        codes_(search.page.codes),
        lane_(static_cast<int>(threadIdx.x) % 32),
        slopes_(memory),
        signs_(memory + codes_) {}

  __device__ void begin(const float* slopes, const uint32_t* bits) {
    for (int n = lane_; n < codes_; n += 32) {
      slopes_[n] = slopes[n];
      signs_[n] = (bits[n / 32] >> n % 32 & 1) != 0 ? -2.0f : 2.0f;
    }
    __syncwarp();
    Least least;
    for (int n = kFour * lane_; n < codes_; n += kFour * 32) least.add(changes(n, slopes_at(n)), n);
    settle(least);
  }

  // Whether a flip lowers the error by more than rounding could have: the loop must end.
  __device__ bool falls() const { return change_ < -1e-6f * __ldg(search_.diagonal() + bit_); }

  __device__ void flip() {
    const float direction = 0.5f * signs_[bit_];
    const float* const steps = search_.gram + static_cast<int64_t>(bit_) * codes_;
    __syncwarp();
    if (lane_ == 0) signs_[bit_] = -2.0f * direction;
    __syncwarp();
    Least least;
    // All of a row of 1024 is on its way before the first of it is there.
#pragma unroll 8
    for (int n = kFour * lane_; n < codes_; n += kFour * 32) {
      const float4 step = __ldg(reinterpret_cast<const float4*>(steps + n)), old = slopes_at(n);
      const float4 slope = make_float4(fmaf(direction, step.x, old.x), fmaf(direction, step.y, old.y),
                                       fmaf(direction, step.z, old.z), fmaf(direction, step.w, old.w));
      *reinterpret_cast<float4*>(slopes_ + n) = slope;
      least.add(changes(n, slope), n);
    }
    settle(least);
  }

  __device__ void end(uint32_t* bits) const {
    for (int first = 0; first < codes_; first += 32) {
      const bool is_set = first + lane_ < codes_ && signs_[first + lane_] < 0.0f;
      const uint32_t word = __ballot_sync(0xffffffffu, is_set);
      if (lane_ == 0) bits[first / 32] = word;
    }
  }

 private:
  __device__ __forceinline__ float4 slopes_at(int n) const { return *reinterpret_cast<const float4*>(slopes_ + n); }
  // What flipping bit n, n + 1, n + 2 or n + 3 adds to the error.
  __device__ __forceinline__ float4 changes(int n, const float4& slope) const {
    const float4 sign = *reinterpret_cast<const float4*>(signs_ + n);
    const float4 own = __ldg(reinterpret_cast<const float4*>(search_.diagonal() + n));
    return make_float4(fmaf(sign.x, slope.x, own.x), fmaf(sign.y, slope.y, own.y), fmaf(sign.z, slope.z, own.z),
                       fmaf(sign.w, slope.w, own.w));
  }

  // The bit of the least change, the first of equals.
  __device__ __forceinline__ void settle(Least least) {
    least_over_lanes<32>(least.change, least.first);
    __syncwarp();
    const float4 four = changes(least.first, slopes_at(least.first));
    const int after = four.x == least.change ? 0 : four.y == least.change ? 1 : four.z == least.change ? 2 : 3;
    change_ = least.change;
    bit_ = least.first + after;
  }

  const ValueSearch& search_;
  const int codes_, lane_;
  float* const slopes_;
  float* const signs_;  // 2, or -2 where the bit is set
  float change_;
  int bit_;
};

__global__ void __launch_bounds__(kThreads)
    descend(const __grid_constant__ ValueSearch search, int64_t tokens, int limit, ValueScratch scratch) {
  extern __shared__ float4 dynamic[];
  const int codes = search.page.codes, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  if (token >= tokens) return;
  Descent descent(search, reinterpret_cast<float*>(dynamic) + warp * 2 * codes);
  descent.begin(scratch.slopes + token * codes, scratch.bits + token * scratch.words);
  for (int flips = 0; flips < limit && descent.falls(); ++flips) descent.flip();
  descent.end(scratch.bits + token * scratch.words);
}

constexpr int kFlipShared = 16 << 10;  // of a block, but for a single token: few wait for the longest descent
// Descents end long before: this is for rounding that goes in circles.
constexpr int kFlipsPerBit = 4;

// Slopes and signs of a token.
int flip_bytes(const ValueSearch& search) { return 2 * search.page.codes * static_cast<int>(sizeof(float)); }

}  // namespace

bool seals_commvq_values(const ValueSearch& search) {
  return search.flips == 0 || shared_memory_has(flip_bytes(search));
}

cudaError_t decide_bits(const ValueSearch& search, int64_t tokens, const ValueScratch& scratch, cudaStream_t stream) {
  static_assert(kPageTokens % kTokens == 0, "tokens are those of whole pages");
  const auto blocks = static_cast<unsigned>(tokens / kTokens);
  if (search.page.codes <= kFour * kThreads) {
    decide<true><<<blocks, kThreads, 0, stream>>>(search, scratch);
  } else {
    decide<false><<<blocks, kThreads, 0, stream>>>(search, scratch);
  }
  return cudaGetLastError();
}

cudaError_t flip_bits(const ValueSearch& search, int64_t tokens, const ValueScratch& scratch, cudaStream_t stream) {
  const int token_bytes = flip_bytes(search);
  const int warps = std::clamp(kFlipShared / token_bytes, 1, kThreads / 32);
  const cudaError_t error = allow_shared_memory(descend, warps * token_bytes);
  if (error != cudaSuccess) return error;
  const int limit = std::min(search.flips, kFlipsPerBit * search.page.codes);
  descend<<<static_cast<unsigned>((tokens + warps - 1) / warps), 32 * warps, warps * token_bytes, stream>>>(
      search, tokens, limit, scratch);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
