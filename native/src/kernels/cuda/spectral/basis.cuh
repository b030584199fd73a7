// Products with the vectors of a basis, [D][D] of float16 numbers: of queries, before the first page, and of sums of
// coefficients, after the last. Loads of vectors do not wait for what they are multiplied with.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/mma.cuh"

namespace kvasir::cuda {

// Queries as two float16 numbers each, what they are and what these lack: [8][query_stride], heads' first numbers in
// even rows. Rows begin in different banks.
template <int D>
constexpr int kQueryStride = D + 32;

template <int D>
__device__ __forceinline__ void put_split_query(uint16_t* queries, int head, int channel, float value) {
  const float first = halves_to_floats(floats_to_halves(value, 0.0f)).x;
  const uint32_t both = floats_to_halves(value, value - first);
  queries[2 * head * kQueryStride<D> + channel] = static_cast<uint16_t>(both);
  queries[(2 * head + 1) * kQueryStride<D> + channel] = static_cast<uint16_t>(both >> 16);
}

// Sixteen vectors, as A fragments of a warp: a lane (g, h) has numbers 8 h .. 8 h + 7 of each 32 of vectors g and
// g + 8, and queries are read in the same order.
template <int D>
class BasisTile {
 public:
  __device__ __forceinline__ void load(const uint16_t* vectors, int tile, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto* const row = reinterpret_cast<const uint4*>(vectors + (16 * tile + 8 * i + lane / 4) * D) + lane % 4;
#pragma unroll
      for (int step = 0; step < D / 32; ++step) numbers_[step][i] = __ldg(row + 4 * step);
    }
  }

  // <query h, vector g> and <query h, vector g + 8>.
  __device__ __forceinline__ float2 times(const uint16_t* queries, int lane) const {
    float products[4] = {};
    const auto* const row = reinterpret_cast<const uint4*>(queries + lane / 4 * kQueryStride<D>) + lane % 4;
#pragma unroll
    for (int step = 0; step < D / 32; ++step) {
      const uint4 b = row[4 * step], low = numbers_[step][0], high = numbers_[step][1];
      mma_halves(products, make_uint4(low.x, high.x, low.y, high.y), b.x, b.y);
      mma_halves(products, make_uint4(low.z, high.z, low.w, high.w), b.z, b.w);
    }
    return make_float2(products[0] + products[1], products[2] + products[3]);
  }

 private:
  uint4 numbers_[D / 32][2];
};

// To the second cache: pages may have driven out what the last block will want.
template <int D>
__device__ __forceinline__ void prefetch_basis(const uint16_t* vectors, int kv_head) {
  if (vectors == nullptr) return;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(vectors + static_cast<int64_t>(kv_head) * D * D);
  for (int at = 128 * threadIdx.x; at < 2 * D * D; at += 128 * blockDim.x) prefetch(bytes + at);
}

// What coefficients of four heads make of channels, by all threads of a block: a thread takes eight channels and every
// so many-th vector, which is its slice.
template <int D>
class BasisSlices {
 public:
  static constexpr int kMost = 32;
  static constexpr int kAhead = 4;  // vectors whose loads do not wait

  // vectors: null where there is no basis, and nothing to multiply.
  __device__ __forceinline__ explicit BasisSlices(const uint16_t* vectors)
      : vectors_(reinterpret_cast<const uint4*>(vectors)),
        slices_(min(kMost, static_cast<int>(blockDim.x) / (D / 8))),
        slice_(threadIdx.x / (D / 8)),
        eighth_(threadIdx.x % (D / 8)) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int c = slice_ + i * slices_;
      ahead_[i] = vectors_ != nullptr && slice_ < slices_ && c < D ? __ldg(vectors_ + c * (D / 8) + eighth_)
                                                                   : make_uint4(0, 0, 0, 0);
    }
  }

  // coefficients: [D][4]. made: [slices][4][D], of floats. All in shared memory.
  __device__ __forceinline__ void multiply(const float* coefficients, float* made) const {
    if (slice_ >= slices_) return;
    float channels[4][8] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int c = slice_ + i * slices_;
      if (c < D) add(ahead_[i], coefficients + 4 * c, channels);
    }
#pragma unroll 2
    for (int c = slice_ + kAhead * slices_; c < D; c += slices_) {
      add(__ldg(vectors_ + c * (D / 8) + eighth_), coefficients + 4 * c, channels);
    }
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      auto* const to = reinterpret_cast<float4*>(made + (4 * slice_ + h) * D + 8 * eighth_);
      to[0] = make_float4(channels[h][0], channels[h][1], channels[h][2], channels[h][3]);
      to[1] = make_float4(channels[h][4], channels[h][5], channels[h][6], channels[h][7]);
    }
  }

  // Channel i % D of head i / D.
  __device__ __forceinline__ float channel(const float* made, int i) const {
    float sum = 0.0f;
#pragma unroll 8
    for (int slice = 0; slice < slices_; ++slice) sum += made[4 * D * slice + i];
    return sum;
  }

 private:
  __device__ __forceinline__ static void add(const uint4& vector, const float* of_heads, float (&channels)[4][8]) {
    const float4 four = *reinterpret_cast<const float4*>(of_heads);
    const float of[4] = {four.x, four.y, four.z, four.w};
    const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = halves_to_floats(words[i]);
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        channels[h][2 * i] = fmaf(of[h], pair.x, channels[h][2 * i]);
        channels[h][2 * i + 1] = fmaf(of[h], pair.y, channels[h][2 * i + 1]);
      }
    }
  }

  const uint4* const vectors_;
  const int slices_, slice_, eighth_;
  uint4 ahead_[kAhead];
};

}  // namespace kvasir::cuda
