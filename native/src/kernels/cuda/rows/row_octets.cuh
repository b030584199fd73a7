// Eight neighbouring channels of one row: where they come from, where they go. Rows move as these between input,
// staging, row tiles and float32; rows_exact.cu pairs a source with a target.
#pragma once

#include "kernels/cuda/layout/fragments.h"
#include "kernels/cuda/layout/input_octets.cuh"
#include "kernels/cuda/rows/rows.h"

namespace kvasir::cuda {

// The staging, from row `first` on.
struct StagingRows {
  Staging staging;
  RowShape shape;
  int64_t first;

  __device__ bool has(int) const { return true; }
  __device__ uint4* vector(const RowPlace& at) const {
    const int64_t row = at.head * staging.rows + first + at.token;
    return reinterpret_cast<uint4*>(staging.sides[at.side] + row * shape.head_dim + at.channel);
  }
  __device__ Octet load(const RowPlace& at) const {
    const uint4 v = *vector(at);
    return {{v.x, v.y, v.z, v.w}};
  }
  __device__ void store(const RowPlace& at, const Octet& octet) const {
    *vector(at) = make_uint4(octet.words[0], octet.words[1], octet.words[2], octet.words[3]);
  }
};

// Blocks of row tiles, as kernel parameters: most moves take a few of them.
template <int kBlocks>
struct BlockList {
  uint8_t* blocks[kBlocks];
};

// Where an octet of row `row` of a block lies. Channels of a key lie in pairs 16 bytes apart, those of a value singly,
// 64 bytes apart.
__device__ __forceinline__ uint8_t* tile_octet(uint8_t* block, int row, const RowShape& shape, const RowPlace& at) {
  const RowTileLayout layout = {shape.head_dim};
  uint8_t* tile = block + static_cast<int64_t>(at.head) * layout.bytes();
  return tile + (at.side == 0 ? layout.key_byte(row, at.channel) : layout.value_byte(row, at.channel));
}

__device__ __forceinline__ void store_octet(uint8_t* bytes, int side, const Octet& octet) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (side == 0) {
      *reinterpret_cast<uint32_t*>(bytes + 16 * i) = octet.words[i];
    } else {
      *reinterpret_cast<uint16_t*>(bytes + 128 * i) = static_cast<uint16_t>(octet.words[i]);
      *reinterpret_cast<uint16_t*>(bytes + 128 * i + 64) = static_cast<uint16_t>(octet.words[i] >> 16);
    }
  }
}

__device__ __forceinline__ Octet load_octet(const uint8_t* bytes, int side) {
  Octet octet;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (side == 0) {
      octet.words[i] = *reinterpret_cast<const uint32_t*>(bytes + 16 * i);
    } else {
      const uint32_t even = *reinterpret_cast<const uint16_t*>(bytes + 128 * i);
      const uint32_t odd = *reinterpret_cast<const uint16_t*>(bytes + 128 * i + 64);
      octet.words[i] = even | odd << 16;
    }
  }
  return octet;
}

// Row tiles, from row `first` of the list on.
template <int kBlocks>
struct TileRows {
  BlockList<kBlocks> list;
  RowShape shape;
  int64_t first;

  __device__ bool has(int) const { return true; }
  __device__ uint8_t* element(const RowPlace& at) const {
    const int64_t row = first + at.token;
    return tile_octet(list.blocks[row / kTileSize], static_cast<int>(row % kTileSize), shape, at);
  }
  __device__ Octet load(const RowPlace& at) const { return load_octet(element(at), at.side); }
  __device__ void store(const RowPlace& at, const Octet& octet) const { store_octet(element(at), at.side, octet); }
};
static_assert(fragment_byte16(2, 0) - fragment_byte16(0, 0) == 16, "pairs of a key");
static_assert(fragment_byte16(0, 1) - fragment_byte16(0, 0) == 64, "channels of a value");

// Float32 rows; what is read from them is cut off at kMaxMagnitude.
struct FloatOctets {
  FloatRows rows;

  __device__ bool has(int side) const { return rows.sides[side] != nullptr; }
  __device__ float* element(const RowPlace& at) const {
    return rows.sides[at.side] + at.token * rows.token_stride + at.head * rows.head_stride + at.channel;
  }
  __device__ Octet load(const RowPlace& at) const {
    const float* x = element(at);
    Octet octet;
#pragma unroll
    for (int i = 0; i < 4; ++i) octet.words[i] = floats_to_halves(clamped(x[2 * i]), clamped(x[2 * i + 1]));
    return octet;
  }
  __device__ void store(const RowPlace& at, const Octet& octet) const {
    float* x = element(at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = halves_to_floats(octet.words[i]);
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }

 private:
  static __device__ float clamped(float x) { return fminf(fmaxf(x, -kMaxMagnitude), kMaxMagnitude); }
};

}  // namespace kvasir::cuda
