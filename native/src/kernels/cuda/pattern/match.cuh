// Nearest patterns of the rows of a page: a block compares 128 rows with all vectors that the page sees.
//
// Distances are those of kernels/match_inl.h, bit for bit: float32, channel by channel. A thread compares 4 rows with a
// few vectors at a time, so that eight 128-bit loads from shared memory serve up to 192 arithmetic instructions; two
// thirds of these are minima and maxima, which run at half rate and are what bounds the kernel.
#pragma once

#include <cuda_fp16.h>

#include <cmath>

#include "kernels/cuda/layout/labels.h"
#include "kernels/cuda/primitives/mma.cuh"

namespace kvasir::cuda {

constexpr int kMatchThreads = 256;
constexpr int kMatchRows = 4;     // of a thread
constexpr int kMatchColumns = 8;  // threads that share rows
static_assert(kMatchThreads / kMatchColumns * kMatchRows == kPageTokens, "a block takes a page");

struct SquaredSum {
  float sum = 0.0f;
  __device__ __forceinline__ void add(float difference) { sum = __fadd_rn(sum, __fmul_rn(difference, difference)); }
  __device__ __forceinline__ float total() const { return sum; }
};

struct ResidualRange {
  float lowest = INFINITY, highest = -INFINITY;
  __device__ __forceinline__ void add(float difference) {
    lowest = fminf(lowest, difference);
    highest = fmaxf(highest, difference);
  }
  __device__ __forceinline__ float total() const { return __fsub_rn(highest, lowest); }
};

// What a page sees of a side table (SideView).
struct TableView {
  const uint8_t* vectors;  // of the kv head
  int fixed;
  int shift;  // label l > fixed means vector l + shift - 1
  int end;    // vectors from here on are of later pages

  // 0 where the page does not see the vector.
  __device__ __forceinline__ int label_of(int vector) const {
    if (vector < fixed) return vector + 1;
    return vector < end && vector >= fixed + shift ? vector + 1 - shift : 0;
  }
  __device__ __forceinline__ int vector_of(int label) const { return label <= fixed ? label - 1 : label - 1 + shift; }
};

// Rows and vectors in shared memory as float32. A row is padded by one vector load, so that eight neighbours meet all
// banks once.
template <int D>
struct MatchTile {
  static constexpr int kStride = D + 4;
  static constexpr int kVectors = D > kValueSpan ? 16 : 32;  // at a time
  float rows[kPageTokens * kStride];
  float vectors[kVectors * kStride];
  float raw[kPageTokens];  // distance to nothing
  float distance[kPageTokens];
  int label[kPageTokens];
};

template <int D>
__device__ __forceinline__ float table_element(const uint8_t* vectors, bool keys, int vector, int channel) {
  constexpr VectorTableLayout kLayout = {D};
  const int64_t byte = keys ? kLayout.key_byte(vector, channel) : kLayout.value_byte(vector, channel);
  return __half2float(__ushort_as_half(__ldg(reinterpret_cast<const uint16_t*>(vectors + byte))));
}

// rows: [128][D] float16.
template <int D>
__device__ __forceinline__ void load_match_rows(const uint16_t* rows, MatchTile<D>& tile) {
  for (int i = threadIdx.x; i < kPageTokens * D / 8; i += kMatchThreads) {
    const uint4 octet = __ldcs(reinterpret_cast<const uint4*>(rows) + i);
    const uint32_t words[4] = {octet.x, octet.y, octet.z, octet.w};
    float4* to = reinterpret_cast<float4*>(tile.rows + i / (D / 8) * tile.kStride + i % (D / 8) * 8);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&words[2 * j]));
      const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&words[2 * j + 1]));
      to[j] = make_float4(a.x, a.y, b.x, b.y);
    }
  }
}

// Vectors base .. base + kVectors - 1, 16 bytes of a fragment a thread and turn. Those that do not exist are zeros, or
// not read at all.
template <int D>
__device__ __forceinline__ void load_vectors(const TableView& view, bool keys, int base, MatchTile<D>& tile) {
  constexpr int kStride = MatchTile<D>::kStride;
  for (int i = threadIdx.x; i < tile.kVectors * D / 8; i += kMatchThreads) {
    const int lane = i % 32, group = i / 32 % (D / 16), local = i / (2 * D) * kTileSize;
    if (base + local >= view.end) continue;
    const int64_t at = static_cast<int64_t>(base + local) * D / 8 + i % (2 * D);
    const uint4 four = __ldg(reinterpret_cast<const uint4*>(view.vectors) + at);
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {  // x, x + 1 of one y (fragment_byte16)
      const int x = lane % 4 * 2 + w / 2 * 8, y = lane / 4 + w % 2 * 8;
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[w]));
      float* first =
          tile.vectors + (keys ? (local + y) * kStride + 16 * group + x : (local + x) * kStride + 16 * group + y);
      first[0] = pair.x;
      first[keys ? 1 : kStride] = pair.y;
    }
  }
}

// The element of the vector of a label; from shared memory where that still holds all vectors.
template <int D>
__device__ __forceinline__ float labelled_element(const TableView& view, bool keys, const MatchTile<D>& tile, int label,
                                                  int channel) {
  const int vector = view.vector_of(label);
  return view.end <= tile.kVectors ? tile.vectors[vector * tile.kStride + channel]
                                   : table_element<D>(view.vectors, keys, vector, channel);
}

// Distances of a thread's rows to its vectors of those that are in shared memory.
template <class Distance, int D, int kEach>
__device__ __forceinline__ void compare(const MatchTile<D>& tile, int first_row, int column,
                                        Distance (&distances)[kMatchRows][kEach]) {
  constexpr int kStride = MatchTile<D>::kStride;
#pragma unroll 2
  for (int c = 0; c < D; c += 4) {
    float4 x[kMatchRows], m[kEach];
#pragma unroll
    for (int r = 0; r < kMatchRows; ++r) {
      x[r] = *reinterpret_cast<const float4*>(tile.rows + (first_row + 32 * r) * kStride + c);
    }
#pragma unroll
    for (int v = 0; v < kEach; ++v) {
      m[v] = *reinterpret_cast<const float4*>(tile.vectors + (column + kMatchColumns * v) * kStride + c);
    }
#pragma unroll
    for (int r = 0; r < kMatchRows; ++r) {
#pragma unroll
      for (int v = 0; v < kEach; ++v) {
        distances[r][v].add(__fsub_rn(x[r].x, m[v].x));
        distances[r][v].add(__fsub_rn(x[r].y, m[v].y));
        distances[r][v].add(__fsub_rn(x[r].z, m[v].z));
        distances[r][v].add(__fsub_rn(x[r].w, m[v].w));
      }
    }
  }
}

// Sets tile.label and tile.distance of each row: the nearest vector's, the first of equals; and tile.raw. matches_raw:
// whether no vector, label 0, is one of them. All threads; begins and ends with a barrier.
template <class Distance, int D>
__device__ __forceinline__ void match_rows(const TableView& view, bool keys, bool matches_raw, MatchTile<D>& tile) {
  constexpr int kStride = MatchTile<D>::kStride, kVectors = MatchTile<D>::kVectors;
  constexpr int kEach = kVectors / kMatchColumns;  // vectors of a thread
  const int thread = threadIdx.x;
  const int column = thread % kMatchColumns, first_row = thread / kMatchColumns;
  __syncthreads();
  // Label 0: the row itself.
  if (thread < kPageTokens) {
    Distance distance;
#pragma unroll 4
    for (int c = 0; c < D; c += 4) {
      const float4 x = *reinterpret_cast<const float4*>(tile.rows + thread * kStride + c);
      distance.add(x.x);
      distance.add(x.y);
      distance.add(x.z);
      distance.add(x.w);
    }
    tile.raw[thread] = distance.total();
  }
  __syncthreads();
  float best[kMatchRows];
  int label[kMatchRows];
#pragma unroll
  for (int r = 0; r < kMatchRows; ++r) {
    best[r] = matches_raw ? tile.raw[first_row + 32 * r] : INFINITY;
    label[r] = 0;
  }
  const int first_far = (view.fixed + view.shift) / kVectors * kVectors;
  for (int base = 0; base < view.end; base += kVectors) {
    if (base >= view.fixed && base < first_far) base = first_far;
    __syncthreads();
    load_vectors(view, keys, base, tile);
    __syncthreads();
    Distance distances[kMatchRows][kEach];
    compare(tile, first_row, column, distances);
#pragma unroll
    for (int v = 0; v < kEach; ++v) {
      const int candidate = view.label_of(base + column + kMatchColumns * v);
      if (candidate == 0) continue;
#pragma unroll
      for (int r = 0; r < kMatchRows; ++r) {
        const float distance = distances[r][v].total();
        if (distance < best[r]) {  // labels of a thread ascend
          best[r] = distance;
          label[r] = candidate;
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kMatchRows; ++r) {
    least_over_lanes<kMatchColumns>(best[r], label[r]);
    if (column == 0) {
      tile.distance[first_row + 32 * r] = best[r];
      tile.label[first_row + 32 * r] = label[r];
    }
  }
  __syncthreads();
}

}  // namespace kvasir::cuda
