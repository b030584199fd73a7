// Which columns a head of a page has, as a warp sees it: a lane knows those of channels lane, lane + 32, ....
#pragma once

#include <cuda_runtime.h>

#include "codecs/spectral/format.h"
#include "codecs/spectral/formula.h"
#include "kernels/cuda/primitives/mma.cuh"

namespace kvasir::cuda {

// Planes of columns as attention numbers them: each begins at a multiple of 32, a step of mma.m16n8k32.
struct ColumnPlanes {
  int count[spectral::kPlanes];  // columns
  int wide;                      // high digits, the first columns of all

  __device__ __forceinline__ int first(int plane) const {
    const int wide = (count[0] + 31) / 32 * 32;
    return plane == 0 ? 0 : plane == 1 ? wide : wide + (count[1] + 31) / 32 * 32;
  }
  // From the codes on.
  __device__ __forceinline__ int offset(int plane) const {
    return plane == 0 ? 0 : plane == 1 ? 64 * count[0] : 64 * count[0] + 32 * count[1];
  }
};

// A channel of a head: column -1 where it has none; of 8 bits `low_digit` is its second column, of the others -1.
struct ChannelView {
  int column, low_digit;
  float step;      // of a code of the first column
  float low;       // what code 0 stands for
  uint8_t stored;  // its step
};

__device__ __forceinline__ float eighths(int code, int bias) {
  return exp2_approx(static_cast<float>(code - bias) * 0.125f);
}

// use(channel, view) for the lane's channels. head: in shared memory.
template <int D, class Use>
__device__ __forceinline__ ColumnPlanes for_each_channel(const uint8_t* head, const spectral::Layout& layout, int lane,
                                                         const Use& use) {
  constexpr int kWords = D / 32;
  uint32_t bits[3][kWords];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
#pragma unroll
    for (int j = 0; j < kWords; ++j) bits[i][j] = *reinterpret_cast<const uint32_t*>(head + i * (D / 8) + 4 * j);
  }
  int eights = 0, fours = 0, twos = 0, ones = 0;
#pragma unroll
  for (int j = 0; j < kWords; ++j) {
    eights += __popc(bits[2][j]);
    fours += __popc(bits[1][j] & bits[0][j]);
    twos += __popc(bits[1][j] & ~bits[0][j]);
    ones += __popc(bits[0][j] & ~bits[1][j]);
  }
  const ColumnPlanes planes = {{2 * eights + fours, twos, ones}, eights};
  const uint32_t before = (1u << lane) - 1;
  // The next column of each class: 8 bits, 4, 2, 1.
  int next8 = 0, next4 = eights, next2 = planes.first(1), next1 = planes.first(2);
#pragma unroll
  for (int j = 0; j < kWords; ++j) {
    const uint32_t eight = bits[2][j], four = bits[1][j] & bits[0][j], two = bits[1][j] & ~bits[0][j],
                   one = bits[0][j] & ~bits[1][j];
    const int c = 32 * j + lane;
    const bool is8 = eight >> lane & 1, is4 = four >> lane & 1, is2 = two >> lane & 1, is1 = one >> lane & 1;
    const uint32_t own = is8 ? eight : is4 ? four : is2 ? two : one;
    const int base = is8 ? next8 : is4 ? next4 : is2 ? next2 : next1;
    ChannelView view;
    const int rank = base + __popc(own & before);
    view.column = is8 || is4 || is2 || is1 ? rank : -1;
    view.low_digit = is8 ? eights + fours + rank : -1;
    view.stored = head[layout.steps + c];
    const float step = eighths(view.stored, spectral::kStepBias);
    const float unit = is4 ? 0.25f : is2 || is1 ? 0.125f : 1.0f;
    view.low = static_cast<float>(static_cast<int8_t>(head[layout.lows + c])) * (unit * step);
    view.step = is8 ? 16.0f * step : step;
    use(j, c, view);
    next8 += __popc(eight);
    next4 += __popc(four);
    next2 += __popc(two);
    next1 += __popc(one);
  }
  return planes;
}

}  // namespace kvasir::cuda
