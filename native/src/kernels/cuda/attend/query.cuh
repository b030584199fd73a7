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

// The same in shared memory. A lane reads four channels at a time.
template <int D, int kTiles>
struct SharedQuery {
  static constexpr int kScalesAt = kTiles * D / 8 * 32 * 4;  // float [4][kTiles], for lanes that did not compute them
  static constexpr int kBytes = kScalesAt + 4 * kTiles * 4;
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
  __device__ __forceinline__ float& scale_of(int head, int lane) const {
    return reinterpret_cast<float*>(shared + offset - 16 * lane + kScalesAt)[head % 4 * kTiles + head / 4];
  }
  // After others have written all of it.
  __device__ __forceinline__ void load_scales(int lane) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) scale[n] = scale_of(4 * n + lane % 4, lane);
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

// Brings the queries of a segment of eight heads to the first cache, a lane a line, and does not wait for them.
template <int D>
__device__ __forceinline__ void touch_queries(const AttendParams& params, int segment, int lane) {
  const SegmentHeads heads = SegmentHeads::of<2>(params, segment);
  const int bytes = D * (params.type == ElementType::kFloat32 ? 4 : 2);
  static_assert(8 * D * 4 <= 32 * 128, "lines");
  const auto* const line = static_cast<const uint8_t*>(params.queries) + heads.first * bytes + lane * 128;
  uint32_t touched;
  if (lane * 128 < heads.count * bytes) {
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(touched) : "l"(__cvta_generic_to_global(line)));
  }
}

// The query of one of eight heads on its way to SharedQuery, where warps load them together: four channels a lane.
template <int D>
class QueryRow {
 public:
  static_assert(D == 128, "32 lanes");

  __device__ __forceinline__ void load(const AttendParams& params, int segment, int head, int lane) {
    const SegmentHeads heads = SegmentHeads::of<2>(params, segment);
    live_ = head < heads.count;  // else another's, which becomes 0
    const int64_t first = (heads.first + min(head, heads.count - 1)) * D + lane * 4;
    const auto* const queries = static_cast<const uint8_t*>(params.queries);
    if (params.type == ElementType::kFloat32) {
      words_ = *reinterpret_cast<const uint4*>(queries + first * 4);
    } else {
      const auto two = *reinterpret_cast<const uint2*>(queries + first * 2);
      words_ = {two.x, two.y, 0, 0};
    }
  }

  // What QueryRows would make of it.
  __device__ __forceinline__ void store(const AttendParams& params, int head, int lane,
                                        const SharedQuery<D, 2>& query) const {
    float values[4] = {__uint_as_float(words_.x), __uint_as_float(words_.y), __uint_as_float(words_.z),
                       __uint_as_float(words_.w)};
    if (params.type != ElementType::kFloat32) {
      const float2 low = numbers_of(words_.x, params.type), high = numbers_of(words_.y, params.type);
      values[0] = low.x, values[1] = low.y, values[2] = high.x, values[3] = high.y;
    }
    float peak = 0.0f;
#pragma unroll
    for (int e = 0; e < 4; ++e) peak = fmaxf(peak, fabsf(values[e]));
    peak = max_over_warp(peak);
    const float inverse = live_ && peak > kLeastPeak ? reciprocal(peak) : 0.0f;
    float* const to = &query.four(head / 4, lane / 8).x + (lane % 2 * 16 + head % 4 - lane) * 4 + lane / 2 % 4;
#pragma unroll
    for (int e = 0; e < 4; ++e) to[16 * e] = values[e] * inverse;
    if (lane == 0) query.scale_of(head, lane) = peak * params.scale;
  }

 private:
  uint4 words_;
  bool live_;
};

// Queries of eight heads on their way to SharedQuery: a lane loads eight channels of four heads, 16 bytes at a time, by
// an eighth of load_query's loads, or a quarter where they are float32.
template <int D>
class QueryRows {
 public:
  static_assert(D == 128, "16 lanes a head");

  __device__ __forceinline__ void load(const AttendParams& params, int segment, int lane) {
    const SegmentHeads heads = SegmentHeads::of<2>(params, segment);
    const bool wide = params.type == ElementType::kFloat32;
    const auto* const queries = static_cast<const uint8_t*>(params.queries);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const int head = 2 * p + lane / 16;
      live_[p] = head < heads.count;  // else another's, which becomes 0
      const int64_t first = (heads.first + min(head, heads.count - 1)) * D + lane % 16 * 8;
      const auto* const from = reinterpret_cast<const uint4*>(queries + first * (wide ? 4 : 2));
      words_[p][0] = from[0];
      words_[p][1] = wide ? from[1] : uint4{};  // always something, or registers would be kept for it all the time
    }
  }

  // What load_query and SharedQuery's assignment would make of them, for other warps, too.
  __device__ __forceinline__ void store(const AttendParams& params, int lane, const SharedQuery<D, 2>& query) const {
    float values[4][8];
    if (params.type == ElementType::kFloat32) {
      convert(values, [](const uint4& low, const uint4& high, int i) {
        const uint4& half = i < 2 ? low : high;
        return i % 2 == 0 ? make_float2(__uint_as_float(half.x), __uint_as_float(half.y))
                          : make_float2(__uint_as_float(half.z), __uint_as_float(half.w));
      });
    } else if (params.type == ElementType::kBFloat16) {
      convert(values, [](const uint4& low, const uint4&, int i) {
        return numbers_of(i == 0 ? low.x : i == 1 ? low.y : i == 2 ? low.z : low.w, ElementType::kBFloat16);
      });
    } else {
      convert(values, [](const uint4& low, const uint4&, int i) {
        return numbers_of(i == 0 ? low.x : i == 1 ? low.y : i == 2 ? low.z : low.w, ElementType::kFloat16);
      });
    }
    __syncwarp();  // what was there has been read
    const int c = lane % 16;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      float peak = 0.0f;
#pragma unroll
      for (int e = 0; e < 8; ++e) peak = fmaxf(peak, fabsf(values[p][e]));
      for (int mask = 1; mask < 16; mask *= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, mask));
      const float inverse = live_[p] && peak > kLeastPeak ? reciprocal(peak) : 0.0f;
      const int h = 2 * p + lane / 16;
      float* const to = &query.four(h / 4, c / 4).x + (h % 4 - lane) * 4 + c % 4;
#pragma unroll
      for (int e = 0; e < 8; ++e) to[16 * e] = values[p][e] * inverse;
      if (c == 0) query.scale_of(h, lane) = peak * params.scale;
    }
  }

 private:
  template <class Pair>
  __device__ __forceinline__ void convert(float (&values)[4][8], const Pair& pair) const {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = pair(words_[p][0], words_[p][1], i);
        values[p][2 * i] = two.x;
        values[p][2 * i + 1] = two.y;
      }
    }
  }

  uint4 words_[4][2];
  bool live_[4];
};

}  // namespace kvasir::cuda
