// Matrix products with weights that are floats, over vectors along the depth.
//
// Both arguments have the depth as their last index, so a tile of kTileRows x kTileColumns sums needs no packing: each
// step loads one vector of every row and column and multiplies all pairs. On AVX-512 that is 10 loads for 24 fused
// multiply-adds, which hides the loads. Every element is added up in the same order whatever tile it falls into.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exponential.h"
#include "kernels/cpu/products/block_matrix.h"
#include "kernels/cpu/products/pair_matrix.h"
#include "kernels/cpu/products/tile_shapes.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_bytes.h"
#include "kernels/weights_inl.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

// As many sums as leave registers for one vector of each row and one of a column.
constexpr int kTileRows = kRegisters >= 32 ? 4 : 3;
constexpr int kTileColumns = kRegisters >= 32 ? 6 : 4;

// Depth of a tile: its columns, widened if need be, stay in the first-level cache while all rows pass by.
constexpr int kTileDepth = 1024;

// From so many rows on, aligned copies of float32 columns pay: vectors that straddle cache lines cost a fifth.
constexpr int kCopyRows = 12;

// The first `count` < kLanes of a vector, the others 0.
inline F32 load_part(const float* from, int count) {
  float lanes[kLanes] = {};
  for (int i = 0; i < count; ++i) lanes[i] = from[i];
  return load(lanes);
}

// sums[r][c] = <row r of a, row c of b> over `depth` elements.
template <int kRows, int kColumns>
inline void tile(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int depth,
                 float (&sums)[kTileRows * kTileColumns]) {
  constexpr int kCount = kRows * kColumns;
  F32 parts[kRows][kColumns];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 6
    for (int c = 0; c < kColumns; ++c) parts[r][c] = splat(0.0f);
  }
  int i = 0;
  for (; i + kLanes <= depth; i += kLanes) {
    F32 row[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) row[r] = load(a + r * a_stride + i);
#pragma GCC unroll 6
    for (int c = 0; c < kColumns; ++c) {
      const F32 column = load(b + c * b_stride + i);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) parts[r][c] = fma(row[r], column, parts[r][c]);
    }
  }
  if (i < depth) {
    for (int c = 0; c < kColumns; ++c) {
      const F32 column = load_part(b + c * b_stride + i, depth - i);
      for (int r = 0; r < kRows; ++r)
        parts[r][c] = fma(load_part(a + r * a_stride + i, depth - i), column, parts[r][c]);
    }
  }
  const F32* flat = &parts[0][0];
#pragma GCC unroll 6
  for (int n = 0; n < kCount; n += 4) {
    const F32 last = flat[kCount - 1];
    const F32 second = n + 1 < kCount ? flat[n + 1] : last;
    const F32 third = n + 2 < kCount ? flat[n + 2] : last;
    const F32 fourth = n + 3 < kCount ? flat[n + 3] : last;
    float four[4];
    store_sums(four, flat[n], second, third, fourth);
    for (int j = 0; j < 4 && n + j < kCount; ++j) sums[n + j] = four[j];
  }
}

struct Target {
  float* out;
  int64_t stride;
  const float* bias;  // of the tile's columns, or null
  bool first;         // the first part of the depth: begin with the bias
};

template <int kRows, int kColumns>
void add_tile(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int depth, const Target& target) {
  float sums[kTileRows * kTileColumns];
  tile<kRows, kColumns>(a, a_stride, b, b_stride, depth, sums);
  for (int r = 0; r < kRows; ++r) {
    float* out = target.out + r * target.stride;
    for (int c = 0; c < kColumns; ++c) {
      const float before = !target.first ? out[c] : target.bias ? target.bias[c] : 0.0f;
      out[c] = before + sums[r * kColumns + c];
    }
  }
}

struct Group {
  template <bool kMinimum>
  static void widen(const int8_t* codes, float scale, float minimum, float* out) {
    constexpr int kVectors = kCodeGroup / kLanes;
    F32 values[kVectors];
    load_bytes(codes, values);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      F32 value = splat(scale) * values[v];
      if (kMinimum) value = value - splat(minimum);
      store(out + v * kLanes, value);
    }
  }
};

void widen(WeightType type, const uint8_t* row, int64_t begin, int count, float* out) {
  if (type != WeightType::kF16) return widen_blocks<Group>(type, row, begin, count, out);
  const uint8_t* from = row + begin * static_cast<int64_t>(sizeof(uint16_t));
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    uint16_t halves[kLanes];
    memcpy(halves, from + i * sizeof *halves, sizeof halves);
    store(out + i, load_half(halves));
  }
  for (; i < count; ++i) out[i] = load_half_at(from + i * sizeof(uint16_t));
}

// kColumns columns of a block.
template <int kColumns>
void columns(const MatrixBlock& block, int64_t column) {
  alignas(64) float tile_columns[kColumns * kTileDepth];
  for (int64_t begin = 0; begin < block.depth; begin += kTileDepth) {
    const int depth = static_cast<int>(block.depth - begin < kTileDepth ? block.depth - begin : kTileDepth);
    const float* b = tile_columns;
    int64_t b_stride = kTileDepth;
    const uint8_t* row = block.b + column * block.row_bytes;
    if (block.type == WeightType::kF32 && block.rows < kCopyRows &&
        reinterpret_cast<uintptr_t>(row) % alignof(float) == 0) {
      b = reinterpret_cast<const float*>(row) + begin;
      b_stride = block.depth;
    } else {
      for (int c = 0; c < kColumns; ++c) {
        widen(block.type, row + c * block.row_bytes, begin, depth, tile_columns + c * kTileDepth);
      }
    }
    for (int64_t r = 0; r < block.rows; r += kTileRows) {
      const float* a = block.a + r * block.depth + begin;
      const Target target = {block.out + r * block.stride + column, block.stride,
                             block.bias ? block.bias + column : nullptr, begin == 0};
      switch (block.rows - r) {
        case 1:
          add_tile<1, kColumns>(a, block.depth, b, b_stride, depth, target);
          break;
        case 2:
          add_tile<2, kColumns>(a, block.depth, b, b_stride, depth, target);
          break;
        case 3:
          add_tile<3, kColumns>(a, block.depth, b, b_stride, depth, target);
          break;
        default:
          add_tile<kTileRows, kColumns>(a, block.depth, b, b_stride, depth, target);
      }
    }
  }
}

void product(const MatrixBlock& block) {
  int64_t c = 0;
  for (; c + kTileColumns <= block.columns; c += kTileColumns) columns<kTileColumns>(block, c);
  for (; c < block.columns; ++c) columns<1>(block, c);
}

inline F32 silu_product(F32 gate, F32 up) {
  const F32 small = exponential(-abs(gate));  // e^-|x|: never too large
  const F32 sigmoid = (gate < splat(0.0f) ? small : splat(1.0f)) / (splat(1.0f) + small);
  return gate * sigmoid * up;
}

void silu_product(const float* gate, const float* up, size_t count, float* out) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, silu_product(load(gate + i), load(up + i)));
  if (i < count) {
    const int rest = static_cast<int>(count - i);
    const F32 last = silu_product(load_part(gate + i, rest), load_part(up + i, rest));
    for (int j = 0; j < rest; ++j) out[i + j] = last[j];
  }
}

}  // namespace

#if KVASIR_TILES
const MatrixKernels matrix_kernels = {product, block_product, encode, widen, silu_product, pair_product, split};
#else
const MatrixKernels matrix_kernels = {product, block_product, encode, widen, silu_product, nullptr, nullptr};
#endif

}  // namespace kvasir::KVASIR_LEVEL
