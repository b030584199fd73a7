// The queries of a segment, in registers.
#pragma once

#include "kernels/cuda/attend/partial.cuh"
#include "kernels/cuda/primitives/numbers.cuh"

namespace kvasir::cuda {

// Head h, h + 4, ... of a lane (h = lane % 4), at channels g, g + 8, ... (g = lane / 4), at most 1 in magnitude.
template <int D, int kTiles>
struct Query {
  static constexpr int kSpans = D > kValueSpan ? D / kValueSpan : 1;
  float values[kTiles][D / 8];
  float scale[kTiles];        // what they were divided by, times the softmax scale, in base 2
  float sum[kTiles][kSpans];  // of the values of each span of channels
};

// The same in shared memory. Each lane reads what it wrote, four channels at a time.
template <int D, int kTiles>
struct SharedQuery {
  static constexpr int kBytes = kTiles * D / 8 * 32 * 4;
  uint8_t* shared;
  uint32_t offset;  // of float4 [kTiles][D / 32][32], at this lane
  float scale[kTiles];

  // first: of shared memory.
  __device__ __forceinline__ void place(uint8_t* first, uint8_t* own, int lane) {
    shared = first;
    offset = static_cast<uint32_t>(own - first) + 16 * lane;
    asm("" : "+r"(offset));  // not to be worked out again for each page
  }
  __device__ __forceinline__ float4& four(int n, int i) const {
    return reinterpret_cast<float4*>(shared + offset)[(n * (D / 32) + i) * 32];
  }
  __device__ __forceinline__ SharedQuery& operator=(const Query<D, kTiles>& query) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < D / 32; ++i) {
        const float* const four = query.values[n] + 4 * i;
        this->four(n, i) = make_float4(four[0], four[1], four[2], four[3]);
      }
      scale[n] = query.scale[n];
    }
    return *this;
  }
};

// Four channels g + 8 (4 i + 0..3) of heads 4 n + h.
template <int D, int kTiles>
__device__ __forceinline__ float4 query_four(const Query<D, kTiles>& query, int n, int i) {
  const float* const four = query.values[n] + 4 * i;
  return make_float4(four[0], four[1], four[2], four[3]);
}
template <int D, int kTiles>
__device__ __forceinline__ float4 query_four(const SharedQuery<D, kTiles>& query, int n, int i) {
  return query.four(n, i);
}

template <int D, int kTiles>
__device__ __forceinline__ void load_query(const AttendParams& params, int segment, int lane, Query<D, kTiles>& query) {
  const SegmentHeads heads = SegmentHeads::of<kTiles>(params, segment);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    // Lanes without a head of their own read another's, and make it 0.
    const int head = min(4 * n + lane % 4, heads.count - 1);
    const bool live = 4 * n + lane % 4 < heads.count;
    load_numbers<D / 8, 8>(params.queries, params.type, (heads.first + head) * D + lane / 4, query.values[n]);
    float peak = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) peak = fmaxf(peak, fabsf(query.values[n][i]));
    peak = max_over_rows(peak);
    const float inverse = live && peak > kLeastPeak ? reciprocal(peak) : 0.0f;  // without a branch
#pragma unroll
    for (int i = 0; i < D / 8; ++i) query.values[n][i] *= inverse;
#pragma unroll
    for (int s = 0; s < query.kSpans; ++s) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < D / 8 / query.kSpans; ++i) sum += query.values[n][s * (kValueSpan / 8) + i];
      query.sum[n][s] = sum_over_rows(sum);
    }
    query.scale[n] = peak * params.scale;
  }
}

}  // namespace kvasir::cuda
