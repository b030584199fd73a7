// A block takes one kv head of a part: rows become coefficients in shared memory, a thread measures a channel, a warp
// shares out the widths, and then threads write words of codes. Whole numbers, and the host's arithmetic operation by
// operation (kernels/spectral_inl.h, codecs/spectral/formula.h). Compiled without contraction (CMakeLists.txt).
#include <cuda_fp16.h>

#include "codecs/spectral/format.h"
#include "codecs/spectral/formula.h"
#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/primitives/shared_memory.h"
#include "kernels/cuda/spectral/seal.h"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPad = 4;        // floats between rows of coefficients, so that tokens of a channel lie in several banks
constexpr int kTokenTile = 8;  // tokens and channels that a thread multiplies at once
constexpr int kChannelTile = 8;
constexpr int kPanel = 16;  // rows of the inverse in shared memory at a time
static_assert(kThreads >= kMaxHeadDim, "a thread for each channel");

struct Params {
  spectral::Layout layout;
  int tile_bits;
  bool keys;
  const float* inverse;
  const uint16_t* rows;   // of kv head 0
  int64_t head_elements;  // from one kv head's rows to the next one's
};

// What a block has in shared memory.
struct Room {
  float* z;         // [128][d + kPad]
  float* panel;     // [kPanel][d]
  float* inverses;  // [128]: of norms
  float* variance;  // [d]
  float* low;       // [d]
  float* inverse_step;
  unsigned long long* keys;  // [d / kTile]
  uint16_t* rows;            // [128][d]
  uint8_t* classes;          // [d]
  uint16_t* columns;         // [2 d]: channel, and 256 for a high digit
  int* counts;               // [kPlanes]: columns

  __device__ Room(uint8_t* memory, int d) {
    z = reinterpret_cast<float*>(memory);
    panel = z + kPageTokens * (d + kPad);
    inverses = panel + kPanel * d;
    variance = inverses + kPageTokens;
    low = variance + d;
    inverse_step = low + d;
    keys = reinterpret_cast<unsigned long long*>(inverse_step + d);
    counts = reinterpret_cast<int*>(keys + kMaxHeadDim / spectral::kTile);
    rows = reinterpret_cast<uint16_t*>(counts + 4);
    columns = rows + kPageTokens * d;
    classes = reinterpret_cast<uint8_t*>(columns + 2 * d);
  }
  static int bytes(int d) {
    return 4 * (kPageTokens * (d + kPad) + kPanel * d + kPageTokens + 3 * d) + 8 * (kMaxHeadDim / spectral::kTile) +
           16 + 2 * (kPageTokens * d + 2 * d) + d;
  }
};

__device__ __forceinline__ float number(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

// Norms, as they are stored and inverted. A half warp takes a row: its lanes are the sixteen sums.
__device__ __forceinline__ void take_norms(const Room& room, int d, uint8_t* norms) {
  const int lane = static_cast<int>(threadIdx.x) % 16;
  for (int t = static_cast<int>(threadIdx.x) / 16; t < kPageTokens; t += kThreads / 16) {
    float sum = 0.0f;
    for (int c = lane; c < d; c += 16) {
      const float x = number(room.rows[t * d + c]);
      sum += x * x;
    }
    for (int half = 8; half > 0; half /= 2) sum += __shfl_down_sync(0xffffffffu, sum, half, 16);
    if (lane != 0) continue;
    const uint8_t norm = spectral::norm_code(sum / static_cast<float>(d));
    norms[t] = norm;
    room.inverses[t] = spectral::inverse_power(norm - spectral::kNormBias);
  }
}

// z = rows over their norms times the inverse: one fused addition for each channel of a row, in their order. A thread
// has eight tokens and two times four channels, half of all apart, so that those of a warp stand together.
__device__ __forceinline__ void multiply(const Room& room, const float* inverse, int d) {
  const int across = d / kChannelTile, units = kPageTokens / kTokenTile * across;
  for (int first = 0; first < units; first += kThreads) {
    const int unit = first + static_cast<int>(threadIdx.x);
    const bool mine = unit < units;
    const int token = unit / across * kTokenTile, channel = unit % across * (kChannelTile / 2);
    float sums[kTokenTile][kChannelTile] = {};
    for (int panel = 0; panel < d; panel += kPanel) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kPanel * d / 4; i += kThreads) {
        reinterpret_cast<float4*>(room.panel)[i] = __ldg(reinterpret_cast<const float4*>(inverse + panel * d) + i);
      }
      __syncthreads();
      if (!mine) continue;
#pragma unroll 1
      for (int i = 0; i < kPanel; i += 2) {
        float x[kTokenTile][2];
#pragma unroll
        for (int t = 0; t < kTokenTile; ++t) {
          const auto two = *reinterpret_cast<const __half2*>(room.rows + (token + t) * d + panel + i);
          x[t][0] = __low2float(two) * room.inverses[token + t];
          x[t][1] = __high2float(two) * room.inverses[token + t];
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float* const row = room.panel + (i + j) * d + channel;
          const float4 low = *reinterpret_cast<const float4*>(row);
          const float4 high = *reinterpret_cast<const float4*>(row + d / 2);
          const float add[kChannelTile] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
          for (int t = 0; t < kTokenTile; ++t) {
#pragma unroll
            for (int c = 0; c < kChannelTile; ++c) sums[t][c] = fmaf(x[t][j], add[c], sums[t][c]);
          }
        }
      }
    }
    if (!mine) continue;
#pragma unroll
    for (int t = 0; t < kTokenTile; ++t) {
      float* const to = room.z + (token + t) * (d + kPad) + channel;
#pragma unroll
      for (int c = 0; c < kChannelTile; ++c) to[c < 4 ? c : d / 2 + c - 4] = sums[t][c];
    }
  }
}

// Least, greatest, mean and variance of a channel, token by token.
struct Measured {
  float low, high, mean;
};
__device__ __forceinline__ Measured measure(const Room& room, int d, int c) {
  const float* const z = room.z + c;
  Measured of = {z[0], z[0], z[0]};
  for (int t = 1; t < kPageTokens; ++t) {
    const float x = z[t * (d + kPad)];
    of.low = x < of.low ? x : of.low;
    of.high = x > of.high ? x : of.high;
    of.mean += x;
  }
  of.mean *= 1.0f / kPageTokens;
  float variance = 0.0f;
  for (int t = 0; t < kPageTokens; ++t) {
    const float from_mean = z[t * (d + kPad)] - of.mean;
    variance += from_mean * from_mean;
  }
  room.variance[c] = variance;
  return of;
}

// The tile of a channel, by its rank; tiles' keys are added up.
__device__ __forceinline__ int tile_of(const Room& room, int d, int c) {
  int rank = 0;
  const float own = room.variance[c];
  for (int o = 0; o < d; ++o) rank += room.variance[o] > own || (room.variance[o] == own && o < c);
  atomicAdd(room.keys + rank / spectral::kTile, static_cast<unsigned long long>(float_bits(own)));
  return rank / spectral::kTile;
}

// spectral::choose_classes from there on, by one warp with a tile a lane. Returns the class of the lane's tile.
__device__ __forceinline__ int class_of_tile(const Room& room, int d, int bits) {
  const int lane = static_cast<int>(threadIdx.x);
  const bool mine = lane < d / spectral::kTile;
  const int64_t key = mine ? static_cast<int64_t>(room.keys[lane]) / spectral::kTile : 0;
  const auto width_at = [&](int64_t level) {
    return mine ? spectral::width_of(spectral::class_above(key - level)) : 0;
  };
  int64_t low = -8 * spectral::kOctave, level = int64_t{1} << 31;
  while (low + 1 < level) {
    const int64_t middle = low + (level - low) / 2;
    (__reduce_add_sync(0xffffffffu, width_at(middle)) > bits ? low : level) = middle;
  }
  int found = mine ? spectral::class_above(key - level) : 0;
  for (int left = bits - __reduce_add_sync(0xffffffffu, width_at(level));;) {
    const bool can =
        mine && found < spectral::kClasses - 1 && spectral::width_of(found + 1) - spectral::width_of(found) <= left;
    int64_t missing = can ? spectral::class_limit(found) - (key - level) : INT64_MAX;
    int best = can ? lane : 32;
    for (int mask = 1; mask < 32; mask *= 2) {
      const int64_t other = __shfl_xor_sync(0xffffffffu, missing, mask);
      const int its = __shfl_xor_sync(0xffffffffu, best, mask);
      if (other < missing || (other == missing && its < best)) {
        missing = other;
        best = its;
      }
    }
    if (best == 32) break;
    const int next = __shfl_sync(0xffffffffu, found, best) + 1;
    left -= spectral::width_of(next) - spectral::width_of(next - 1);
    if (lane == best) found = next;
  }
  return found;
}

// Columns in their order (format.h), by one warp; their numbers by plane.
__device__ __forceinline__ void list_columns(const Room& room, int d, int (&counts)[spectral::kPlanes]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int all = 0;
  const auto add = [&](int of_class, int mark) {
    const int before = all;
    for (int first = 0; first < d; first += 32) {
      const bool member = first + lane < d && room.classes[first + lane] == of_class;
      const unsigned members = __ballot_sync(0xffffffffu, member);
      if (member) room.columns[all + __popc(members & ((1u << lane) - 1))] = static_cast<uint16_t>(first + lane + mark);
      all += __popc(members);
    }
    return all - before;
  };
  counts[0] = add(4, 256);
  counts[0] += add(3, 0);
  counts[0] += add(4, 0);
  counts[1] = add(2, 0);
  counts[2] = add(1, 0);
}

// A word of a plane's codes: four columns, or four tokens.
__device__ __forceinline__ uint32_t code_word(const Room& room, int d, bool keys, int bits, int count, int first,
                                              int word) {
  uint32_t out = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int column, token, step;  // of bits p * bits: token + p * step
    if (keys) {
      const int vector = word / 16;
      column = vector % (count / 4) * 4 + i;
      token = vector / (count / 4) * (128 / bits) + word % 16;
      step = 16;
    } else {
      const int vector = word / 8, vectors = kPageTokens / (32 / bits);
      column = vector / vectors * spectral::kTile + word % 8;
      token = vector % vectors * (32 / bits) + i;
      step = 4;
    }
    const int marked = room.columns[first + column], c = marked % 256;
    const int of_class = room.classes[c], last = (1 << spectral::width_of(of_class)) - 1;
    const int shift = marked >= 256 ? 4 : 0, mask = (1 << bits) - 1;
    const float low = room.low[c], inverse = room.inverse_step[c];
    for (int p = 0; p < 8 / bits; ++p) {
      const float z = room.z[(token + p * step) * (d + kPad) + c];
      const auto code = static_cast<uint32_t>(spectral::code_of(z, low, inverse, last) >> shift & mask);
      out |= code << (8 * i + bits * p);
    }
  }
  return out;
}

// Bytes of the head that are not codes, but for norms: a thread has a channel, a ballot 32 bits of a plane.
__device__ __forceinline__ void write_header(const spectral::Layout& layout, int of_class, spectral::Parameters stored,
                                             uint8_t* head) {
  const int d = layout.head_dim, c = static_cast<int>(threadIdx.x);
  for (int i = 0; i < 3; ++i) {
    const unsigned bits = __ballot_sync(0xffffffffu, c < d && (of_class >> i & 1) != 0);
    if (c < d && c % 8 == 0) head[(i * d + c) / 8] = static_cast<uint8_t>(bits >> c % 32);
  }
  if (c < d) {
    head[layout.steps + c] = stored.step;
    head[layout.lows + c] = static_cast<uint8_t>(stored.low);
  }
  for (size_t i = layout.lows + d + c; i < layout.codes; i += kThreads) head[i] = 0;
}

__global__ void __launch_bounds__(kThreads)
    seal_parts(const __grid_constant__ PageList<uint8_t> parts, const __grid_constant__ Params params) {
  extern __shared__ __align__(16) uint8_t memory[];
  const int d = params.layout.head_dim, kv_head = static_cast<int>(blockIdx.y), c = static_cast<int>(threadIdx.x);
  const Room room(memory, d);
  uint8_t* const head = parts.pages[blockIdx.x] + kv_head * params.layout.bytes;
  const uint16_t* const rows =
      params.rows + kv_head * params.head_elements + static_cast<int64_t>(blockIdx.x) * kPageTokens * d;
  for (int i = c; i < kPageTokens * d / 8; i += kThreads) {
    reinterpret_cast<uint4*>(room.rows)[i] = __ldg(reinterpret_cast<const uint4*>(rows) + i);
  }
  if (c < kMaxHeadDim / spectral::kTile) room.keys[c] = 0;
  __syncthreads();
  take_norms(room, d, head + params.layout.norms);
  __syncthreads();
  if (params.inverse != nullptr) {
    multiply(room, params.inverse + static_cast<int64_t>(kv_head) * d * d, d);
  } else {
    for (int i = c; i < kPageTokens * d; i += kThreads) {
      room.z[i / d * (d + kPad) + i % d] = number(room.rows[i]) * room.inverses[i / d];
    }
  }
  __syncthreads();
  Measured measured = {};
  if (c < d) measured = measure(room, d, c);
  __syncthreads();
  const int tile = c < d ? tile_of(room, d, c) : 0;
  __syncthreads();
  if (c < 32) {
    const int found = class_of_tile(room, d, params.tile_bits);
    __syncwarp();
    if (c < d / spectral::kTile) room.keys[c] = static_cast<unsigned long long>(found);
  }
  __syncthreads();
  const int of_class = c < d ? static_cast<int>(room.keys[tile]) : 0;
  spectral::Parameters stored = {};
  if (c < d) {
    stored = spectral::parameters_of(of_class, measured.low, measured.high, measured.mean);
    room.classes[c] = static_cast<uint8_t>(of_class);
    room.low[c] = spectral::low_value(stored, of_class);
    room.inverse_step[c] = spectral::inverse_power(stored.step - spectral::kStepBias);
  }
  write_header(params.layout, of_class, stored, head);
  __syncthreads();
  if (c < 32) {
    int found[spectral::kPlanes];
    list_columns(room, d, found);
    if (c == 0) {
      for (int i = 0; i < spectral::kPlanes; ++i) room.counts[i] = found[i];
    }
  }
  __syncthreads();
  auto* words = reinterpret_cast<uint32_t*>(head + params.layout.codes);
  int first = 0;
  for (int plane = 0; plane < spectral::kPlanes; ++plane) {
    const int bits = spectral::plane_bits(plane), size = room.counts[plane] * bits * kPageTokens / 32;
    for (int word = c; word < size; word += kThreads) {
      words[word] = code_word(room, d, params.keys, bits, room.counts[plane], first, word);
    }
    words += size;
    first += room.counts[plane];
  }
  // What channels left of the page's bits.
  const auto* const end = reinterpret_cast<const uint32_t*>(head + params.layout.bytes);
  for (uint32_t* word = words + c; word < end; word += kThreads) *word = 0;
}

}  // namespace

cudaError_t seal_spectral_parts(const SpectralSealRequest& request, cudaStream_t stream) {
  const PageFormat& format = request.format;
  const int d = format.head_dim, side = static_cast<int>(format.side);
  int most = 0;
  cudaError_t error = most_shared_memory(&most);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(seal_parts, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
  }
  if (error != cudaSuccess) return error;
  const auto launch = [&](const PageList<uint8_t>& list, int count, int64_t first) {
    const Params params = {spectral::layout_of(format),
                           spectral::tile_bits(format),
                           format.side == Side::kKeys,
                           request.inverse,
                           request.staging.sides[side] + first * kPageTokens * d,
                           request.staging.rows * d};
    seal_parts<<<dim3(count, format.heads), kThreads, Room::bytes(d), stream>>>(list, params);
    return cudaGetLastError();
  };
  return for_page_lists(request.parts, request.part_count, launch);
}

}  // namespace kvasir::cuda
