// The arithmetic is the host's, operation by operation.
#include "codecs/spectral/format.h"
#include "codecs/spectral/formula.h"
#include "kernels/cuda/spectral/rows.h"

namespace kvasir::cuda {
namespace {

// What the launch needs of the format.
struct SpectralShape {
  spectral::Layout layout;
  int kv_heads;
  Side side;
};

// Columns of a channel: its high digit, or its only one, and the low digit of one of 8 bits.
struct ChannelColumns {
  int of_class;
  int plane;
  int columns;  // of the plane
  int first, second;
};

// Channels before `channel` of a class, and all of them.
__device__ int rank_in_class(const uint8_t* head, int head_dim, int of_class, int channel, int* all) {
  int before = 0, count = 0;
  for (int c = 0; c < head_dim; ++c) {
    const bool same = spectral::class_of(head, head_dim, c) == of_class;
    before += same && c < channel;
    count += same;
  }
  *all = count;
  return before;
}

__device__ ChannelColumns columns_of_channel(const uint8_t* head, int head_dim, int channel) {
  ChannelColumns found = {};
  found.of_class = spectral::class_of(head, head_dim, channel);
  int all, fours, eights;
  rank_in_class(head, head_dim, 3, 0, &fours);
  rank_in_class(head, head_dim, 4, 0, &eights);
  const int rank = rank_in_class(head, head_dim, found.of_class, channel, &all);
  found.plane = found.of_class >= 3 ? 0 : 3 - found.of_class;
  found.columns = found.plane == 0 ? 2 * eights + fours : all;
  found.first = found.of_class == 3 ? eights + rank : rank;
  found.second = eights + fours + rank;
  return found;
}

// A block takes one kv head of a page, a thread one channel.
__global__ void __launch_bounds__(kMaxHeadDim)
    spectral_rows(SpectralShape shape, const float* vectors, RowUnpacking unpacking) {
  __shared__ float z[kMaxHeadDim];
  const int d = shape.layout.head_dim, kv_head = blockIdx.y, c = threadIdx.x;
  for (int64_t page = blockIdx.x; page < unpacking.page_count; page += gridDim.x) {
    const uint8_t* const head = unpacking.pages[page] + unpacking.offset + kv_head * shape.layout.bytes;
    const ChannelColumns own = columns_of_channel(head, d, c);
    const spectral::Parameters stored = {head[shape.layout.steps + c],
                                         static_cast<int8_t>(head[shape.layout.lows + c])};
    const float low = spectral::low_value(stored, own.of_class), step = spectral::step_value(stored.step);
    int of_plane[spectral::kPlanes] = {};
    for (int i = 0; i < d; ++i) {
      const int of_class = spectral::class_of(head, d, i);
      if (of_class != 0) of_plane[of_class >= 3 ? 0 : 3 - of_class] += of_class == 4 ? 2 : 1;
    }
    const uint8_t* codes = head + shape.layout.codes;
    for (int i = 0; i < own.plane; ++i) codes += of_plane[i] * spectral::plane_bits(i) * kPageTokens / 8;
    const int bits = spectral::plane_bits(own.plane);
    const auto digit = [&](int column, int token) {
      const spectral::CodePlace place = shape.side == Side::kKeys
                                            ? spectral::key_place(bits, own.columns, column, token)
                                            : spectral::value_place(bits, column, token);
      return static_cast<float>(codes[place.byte] >> place.bit & ((1 << bits) - 1));
    };
    float* const rows = unpacking.rows + (kv_head * unpacking.page_count + page) * kPageTokens * d;
    for (int t = 0; t < kPageTokens; ++t) {
      float coefficient = low;
      if (own.of_class == 4) {
        coefficient += digit(own.first, t) * (step * 16.0f);
        coefficient += digit(own.second, t) * step;
      } else if (own.of_class != 0) {
        coefficient += digit(own.first, t) * step;
      }
      float sum = coefficient;
      if (vectors) {
        __syncthreads();
        z[c] = coefficient;
        __syncthreads();
        sum = 0.0f;
        const float* const matrix = vectors + static_cast<int64_t>(kv_head) * d * d + c;
        for (int i = 0; i < d; ++i) sum = fmaf(z[i], __ldg(matrix + static_cast<int64_t>(i) * d), sum);
      }
      rows[static_cast<int64_t>(t) * d + c] = sum * spectral::norm_of(head[shape.layout.norms + t]);
    }
  }
}

}  // namespace

cudaError_t launch_spectral_rows(const PageFormat& format, const float* vectors, const RowUnpacking& unpacking,
                                 cudaStream_t stream) {
  if (unpacking.page_count == 0) return cudaSuccess;
  const SpectralShape shape = {spectral::layout_of(format), format.heads, format.side};
  const dim3 grid(grid_columns(unpacking.page_count), format.heads);
  spectral_rows<<<grid, format.head_dim, 0, stream>>>(shape, vectors, unpacking);
  return cudaGetLastError();
}

}  // namespace kvasir::cuda
