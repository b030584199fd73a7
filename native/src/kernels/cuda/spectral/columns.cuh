// Which columns a head of a page has, as a warp sees it: a lane knows those of D / 32 channels that follow each other.
#pragma once

#include <cuda_runtime.h>

#include "codecs/spectral/format.h"
#include "codecs/spectral/formula.h"
#include "kernels/cuda/primitives/mma.cuh"

namespace kvasir::cuda {

// Planes of columns as attention numbers them: each begins at a multiple of 32, a step of mma.m16n8k32.
struct ColumnPlanes {
  int count[spectral::kPlanes];  // columns
  int wide;                      // high digits, the first columns of all; there are as many low ones, the plane's last

  __device__ __forceinline__ int first(int plane) const {
    const int wide = (count[0] + 31) / 32 * 32;
    return plane == 0 ? 0 : plane == 1 ? wide : wide + (count[1] + 31) / 32 * 32;
  }
  // From the codes on.
  __device__ __forceinline__ int offset(int plane) const {
    return plane == 0 ? 0 : plane == 1 ? 64 * count[0] : 64 * count[0] + 32 * count[1];
  }
};

// Where numbers of a channel, four floats, stand in arrays of shared memory that a warp reads a channel of each lane at
// a time. A lane's channels are turned against each other, so that eight channels that follow each other are in
// different banks, too, as columns mostly do.
template <int D>
__device__ __forceinline__ int place_of(int lane, int j) {
  constexpr int kTurn = (8 * 32 + D - 1) / D;
  return 32 * j + (lane & ~7) + ((lane + kTurn * j) & 7);
}
template <int D>
__device__ __forceinline__ int place_of(int channel) {
  return place_of<D>(channel / (D / 32), channel % (D / 32));
}

// 2^((byte i of word - bias) / 8). The byte becomes a float without an instruction that converts: it is the last bits
// of 2^23 + byte, and one fused addition takes 2^23 away again.
__device__ __forceinline__ float eighths(uint32_t word, int i, int bias) {
  const float shifted = __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440u + static_cast<uint32_t>(i)));
  return exp2_approx(fmaf(shifted, 0.125f, -0.125f * static_cast<float>(8388608 + bias)));
}

// The lane's channels of a head. Columns are counted for four classes at once, each in a field of its own of a word: a
// channel adds 1 to the field of its class, and a scan over the warp says how many are before it.
template <int D>
struct LaneChannels {
  static constexpr int kCount = D / 32;

  ColumnPlanes planes;
  int column[kCount];  // where used(): the first of a channel of 8 bits is its high digit
  float step[kCount];  // of a code of the first column
  float low[kCount];   // what code 0 stands for

  // head: in shared memory.
  __device__ __forceinline__ LaneChannels(const uint8_t* head, const spectral::Layout& layout, int lane) {
    read_classes(head, lane);
    number_columns();
    read_parameters(head, layout, lane);
  }

  __device__ __forceinline__ bool used(int j) const { return shift_[j] != 32; }
  __device__ __forceinline__ bool wide(int j) const { return shift_[j] == 0; }
  __device__ __forceinline__ int low_digit(int j) const { return column[j] + planes.count[0] - planes.wide; }

 private:
  static constexpr int kFields = D <= 128 ? 4 : 2;  // of a word: as many channels as there are must fit
  static constexpr int kFieldBits = 32 / kFields, kWords = 4 / kFields;

  // 8 times what the class lacks of 4: the order of columns, and the bit at which a byte of the class begins.
  __device__ __forceinline__ void read_classes(const uint8_t* head, int lane) {
    uint32_t bits[3];
    const int at = kCount * lane;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const auto* const words = reinterpret_cast<const uint32_t*>(head + i * (D / 8)) + at / 32;
      bits[i] = 32 % kCount == 0 ? words[0] >> at % 32 : __funnelshift_r(words[0], words[1], at % 32);
    }
#pragma unroll
    for (int quad = 0; quad < kCount; quad += 4) {
      uint32_t shifts = 0x20202020u;
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        // Bit k of four becomes bit 0 of byte k.
        shifts -= ((bits[i] >> quad & 15u) * 0x00204081u & 0x01010101u) * (8u << i);
      }
#pragma unroll
      for (int j = quad; j < quad + 4 && j < kCount; ++j) shift_[j] = static_cast<int>(shifts >> 8 * (j - quad) & 255u);
    }
  }

  // 1 in the field of channel j's class, if that is in this word.
  __device__ __forceinline__ uint32_t one(int word, int j) const {
    if constexpr (kWords == 1) return __funnelshift_lc(0u, 1u, static_cast<uint32_t>(shift_[j]));
    return shift_[j] / 16 == word ? 1u << shift_[j] % 16 * 2 : 0u;
  }

  __device__ __forceinline__ static uint32_t field(const uint32_t (&words)[kWords], int shift) {
    if constexpr (kWords == 1) return __funnelshift_rc(words[0], 0u, static_cast<uint32_t>(shift)) & 255u;
    return (shift & 16 ? words[kWords - 1] : words[0]) >> shift % 16 * 2 & 0xFFFFu;
  }

  __device__ __forceinline__ void number_columns() {
    uint32_t before[kWords], all[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      uint32_t own = 0;
#pragma unroll
      for (int j = 0; j < kCount; ++j) own += one(w, j);
      uint32_t sum = own;
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        asm volatile("{ .reg .pred p; .reg .b32 t; shfl.sync.up.b32 t|p, %0, %1, 0, 0xffffffff; @p add.u32 %0, %0, t; }"
                     : "+r"(sum)
                     : "r"(lanes));
      }
      all[w] = __shfl_sync(0xffffffffu, sum, 31);
      before[w] = sum - own;
    }
    const int eights = static_cast<int>(field(all, 0)), fours = static_cast<int>(field(all, 8));
    planes = {{2 * eights + fours, static_cast<int>(field(all, 16)), static_cast<int>(field(all, 24))}, eights};
    // Where columns of the classes begin, a byte each: all are multiples of eight.
    const uint32_t firsts = static_cast<uint32_t>(eights / 8) << 8 | static_cast<uint32_t>(planes.first(1) / 8) << 16 |
                            static_cast<uint32_t>(planes.first(2) / 8) << 24;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const uint32_t first = __funnelshift_rc(firsts, 0u, static_cast<uint32_t>(shift_[j])) & 255u;
      column[j] = static_cast<int>(8 * first + field(before, shift_[j]));
#pragma unroll
      for (int w = 0; w < kWords; ++w) before[w] += one(w, j);
    }
  }

  __device__ __forceinline__ void read_parameters(const uint8_t* head, const spectral::Layout& layout, int lane) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      uint32_t step_word, low_word;
      if constexpr (kCount % 4 == 0) {
        const int quad = kCount * lane + j / 4 * 4;
        step_word = *reinterpret_cast<const uint32_t*>(head + layout.steps + quad) >> 8 * (j % 4);
        low_word = *reinterpret_cast<const uint32_t*>(head + layout.lows + quad) >> 8 * (j % 4);
      } else {
        step_word = head[layout.steps + kCount * lane + j];
        low_word = head[layout.lows + kCount * lane + j];
      }
      step[j] = eighths(step_word, 0, spectral::kStepBias);
      // A unit of `low` is 2^-2 steps at 4 bits, 2^-3 at 2 and 1; at 8 and 0 a step.
      const uint32_t halvings = __funnelshift_rc(0x03030200u, 0u, static_cast<uint32_t>(shift_[j])) & 255u;
      const float unit = __uint_as_float(__float_as_uint(step[j]) - (halvings << 23));
      low[j] = static_cast<float>(static_cast<int8_t>(low_word)) * unit;
    }
    if (planes.wide == 0) return;
#pragma unroll
    for (int j = 0; j < kCount; ++j) step[j] = wide(j) ? 16.0f * step[j] : step[j];
  }

  int shift_[kCount];
};

}  // namespace kvasir::cuda
