// out[m][n] = sum over k of left[m][k] * right[n][k], the terms added one by one from k = 0 on and never fused with
// their products: what a plain loop on the host makes, bit for bit. For files that are compiled without contraction.
//
// Tensor cores and fused additions round otherwise, so this runs at half of the rate of float32. A block makes 64 by 64
// sums, a thread 8 by 4 of them; both matrices pass through shared memory 16 terms at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvasir::cuda {

// Matrices. at(row, k): four terms of a row from k on; kAcross: term k of four rows from `row` on, because these stand
// together. Fours begin at multiples of 4. kBits: all are 0 or 1, so that products are exact and may be fused.

struct FloatMatrix {
  static constexpr bool kAcross = false, kBits = false;
  const float* elements;
  int64_t stride;

  __device__ __forceinline__ float4 at(int64_t row, int k) const {
    return __ldg(reinterpret_cast<const float4*>(elements + row * stride + k));
  }
};

// A bit for each term, 32 in a word.
struct BitMatrix {
  static constexpr bool kAcross = false, kBits = true;
  const uint32_t* words;
  int64_t stride;

  __device__ __forceinline__ float4 at(int64_t row, int k) const {
    const uint32_t bits = words[row * stride + k / 32] >> k % 32;
    const auto term = [&](int i) { return (bits >> i & 1) != 0 ? 1.0f : 0.0f; };
    return make_float4(term(0), term(1), term(2), term(3));
  }
};

namespace in_order {

constexpr int kThreads = 128;
constexpr int kSize = 64;   // rows of a block, of both matrices
constexpr int kTerms = 16;  // in shared memory at a time
constexpr int kFour = 4;
constexpr int kStride = kSize + kFour;
constexpr int kFetches = kSize * kTerms / kFour / kThreads;  // of a thread, for one matrix

// One matrix on its way through shared memory.
template <class Matrix>
class Panel {
 public:
  __device__ Panel(const Matrix& matrix, int64_t first, int64_t rows) : matrix_(matrix), first_(first), rows_(rows) {}

  __device__ __forceinline__ void fetch(int k, int depth) {
#pragma unroll
    for (int i = 0; i < kFetches; ++i) {
      const bool there = first_ + row(i) < rows_ && k + term(i) < depth;
      waiting_[i] = there ? matrix_.at(first_ + row(i), k + term(i)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }
  __device__ __forceinline__ void put(float (&to)[kTerms][kStride]) const {
#pragma unroll
    for (int i = 0; i < kFetches; ++i) {
      if constexpr (Matrix::kAcross) {
        *reinterpret_cast<float4*>(&to[term(i)][row(i)]) = waiting_[i];
      } else {
        to[term(i)][row(i)] = waiting_[i].x;
        to[term(i) + 1][row(i)] = waiting_[i].y;
        to[term(i) + 2][row(i)] = waiting_[i].z;
        to[term(i) + 3][row(i)] = waiting_[i].w;
      }
    }
  }

 private:
  // Neighbouring threads take what stands side by side.
  __device__ static int item(int i) { return static_cast<int>(threadIdx.x) + i * kThreads; }
  __device__ static int row(int i) {
    return Matrix::kAcross ? item(i) % (kSize / kFour) * kFour : item(i) / (kTerms / kFour);
  }
  __device__ static int term(int i) {
    return Matrix::kAcross ? item(i) / (kSize / kFour) : item(i) % (kTerms / kFour) * kFour;
  }

  const Matrix matrix_;
  const int64_t first_, rows_;
  float4 waiting_[kFetches];
};

template <class Left, class Right, class Store>
__global__ void __launch_bounds__(kThreads)
    multiply(Left left, int64_t rows, Right right, int columns, int depth, Store store) {
  __shared__ float lefts[2][kTerms][kStride], rights[2][kTerms][kStride];
  // A thread's rows are four and four, half of the block's apart, so that those of a warp stand together.
  const int row = static_cast<int>(threadIdx.x) % 8 * kFour, column = static_cast<int>(threadIdx.x) / 8 * kFour;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kSize;
  const int first_column = static_cast<int>(blockIdx.y) * kSize;
  Panel<Left> left_panel(left, first_row, rows);
  Panel<Right> right_panel(right, first_column, columns);
  left_panel.fetch(0, depth);
  right_panel.fetch(0, depth);
  float sums[2 * kFour][kFour] = {};
  for (int k = 0, buffer = 0; k < depth; k += kTerms, buffer ^= 1) {
    left_panel.put(lefts[buffer]);
    right_panel.put(rights[buffer]);
    __syncthreads();
    if (k + kTerms < depth) {
      left_panel.fetch(k + kTerms, depth);
      right_panel.fetch(k + kTerms, depth);
    }
#pragma unroll
    for (int i = 0; i < kTerms; ++i) {
      const float4 x = *reinterpret_cast<const float4*>(&lefts[buffer][i][row]);
      const float4 z = *reinterpret_cast<const float4*>(&lefts[buffer][i][row + kSize / 2]);
      const float4 y = *reinterpret_cast<const float4*>(&rights[buffer][i][column]);
      const float xs[2 * kFour] = {x.x, x.y, x.z, x.w, z.x, z.y, z.z, z.w}, ys[kFour] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int r = 0; r < 2 * kFour; ++r) {
#pragma unroll
        for (int c = 0; c < kFour; ++c) {
          if constexpr (Left::kBits) {
            sums[r][c] = fmaf(xs[r], ys[c], sums[r][c]);
          } else {
            sums[r][c] += xs[r] * ys[c];
          }
        }
      }
    }
  }
  if (first_column + column >= columns) return;
#pragma unroll
  for (int r = 0; r < 2 * kFour; ++r) {
    const float4 four = make_float4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
    const int64_t to = first_row + row + (r < kFour ? r : r - kFour + kSize / 2);
    if (to < rows) store(to, first_column + column, four);
  }
}

}  // namespace in_order

// Where sums go: store(row, first of four columns, sums).
struct StoreFloats {
  float* out;
  int64_t stride;

  __device__ __forceinline__ void operator()(int64_t row, int column, const float4& four) const {
    *reinterpret_cast<float4*>(out + row * stride + column) = four;
  }
};

// columns and depth: multiples of 4.
template <class Left, class Right, class Store>
cudaError_t in_order_product(const Left& left, int64_t rows, const Right& right, int columns, int depth,
                             const Store& store, cudaStream_t stream) {
  using namespace in_order;
  const dim3 grid(static_cast<unsigned>((rows + kSize - 1) / kSize),
                  static_cast<unsigned>((columns + kSize - 1) / kSize));
  multiply<<<grid, kThreads, 0, stream>>>(left, rows, right, columns, depth, store);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
