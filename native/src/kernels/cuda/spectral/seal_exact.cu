// A block takes one kv head of a part. Rows over their norms become whole numbers in shared memory, and coefficients in
// their place. Then a thread measures a channel, the block shares out the widths, and threads write words of codes. The
// host's arithmetic operation by operation (kernels/spectral_inl.h, codecs/spectral/formula.h). Compiled without
// contraction (CMakeLists.txt).
#include "codecs/spectral/format.h"
#include "codecs/spectral/formula.h"
#include "kernels/cuda/layout/page_list.h"
#include "kernels/cuda/primitives/shared_memory.h"
#include "kernels/cuda/spectral/seal.h"
#include "kernels/cuda/spectral/transform.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kLimits = spectral::kClasses - 1;

// At least one for each channel.
constexpr int threads_for(int d) { return d <= 128 ? 256 : 512; }

struct Params {
  spectral::Layout layout;
  int tile_bits;
  bool keys;
  SealBasis basis;
  const uint16_t* rows;   // of kv head 0
  int64_t head_elements;  // from one kv head's rows to the next one's
};

// What a block has in shared memory.
struct Room {
  float* z;       // [128][d + kPad]: numbers, then coefficients
  float* square;  // [d]: of ranges
  float* low;     // [d]
  float* inverse_step;
  unsigned long long* keys;  // [kMaxHeadDim / kTile]
  int4* counts;              // [kMaxHeadDim / 32]: channels of 1, 2, 4 and 8 bits that a warp has
  int* level;
  uint16_t* columns;  // [2 d]: channel, and kHighDigit or kLowDigit

  __device__ Room(uint8_t* memory, int d) {
    z = reinterpret_cast<float*>(memory);
    square = z + kPageTokens * (d + kPad);
    low = square + d;
    inverse_step = low + d;
    keys = reinterpret_cast<unsigned long long*>(inverse_step + d);
    counts = reinterpret_cast<int4*>(keys + kMaxHeadDim / spectral::kTile);
    level = reinterpret_cast<int*>(counts + kMaxHeadDim / 32);
    columns = reinterpret_cast<uint16_t*>(level + 4);
  }
  static int bytes(int d) {
    return 4 * (kPageTokens * (d + kPad) + 3 * d) + 8 * (kMaxHeadDim / spectral::kTile) + 16 * (kMaxHeadDim / 32) + 16 +
           4 * d;
  }
};

constexpr int kHighDigit = 256, kLowDigit = 512;

// Least, greatest and mean of a channel, token by token; the square of its range is kept for all threads to see.
struct Measured {
  float low, high, mean;
};
__device__ __forceinline__ Measured measure(const Room& room, int d, int c) {
  const float* const z = room.z + c;
  Measured of = {z[0], z[0], z[0]};
#pragma unroll 16
  for (int t = 1; t < kPageTokens; ++t) {
    const float x = z[t * (d + kPad)];
    of.low = x < of.low ? x : of.low;
    of.high = x > of.high ? x : of.high;
    of.mean += x;
  }
  of.mean *= 1.0f / kPageTokens;
  const float range = of.high - of.low;
  room.square[c] = range * range;
  return of;
}

// The tile of a channel, by its rank; tiles' keys are added up. Bits of squares, which are not negative, are in the
// order of the squares.
__device__ __forceinline__ int tile_of(const Room& room, int d, int c) {
  int rank = 0;
  const auto* const of = reinterpret_cast<const uint4*>(room.square);
  const uint32_t own = float_bits(room.square[c]);
#pragma unroll 4
  for (int o = 0; o < d; o += 4) {
    const uint4 four = of[o / 4];
    const uint32_t bits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) rank += bits[i] + (o + i < c ? 1u : 0u) > own;  // equals: the first is the greater
  }
  atomicAdd(room.keys + rank / spectral::kTile, static_cast<unsigned long long>(own));
  return rank / spectral::kTile;
}

__device__ __forceinline__ int key_of(const Room& room, int tile) {
  return static_cast<int>(room.keys[tile] / spectral::kTile);
}

// Bits that tiles have at a level change where one of them passes a limit; the level is one above the highest place
// where they have too many. A thread takes a limit of a tile. *room.level: below all.
__device__ __forceinline__ void find_level(const Room& room, int d, int bits) {
  const int c = static_cast<int>(threadIdx.x), tiles = d / spectral::kTile;
  if (c / 32 * 32 >= kLimits * tiles) return;
  int limits[kLimits], above = INT32_MIN;
#pragma unroll
  for (int i = 0; i < kLimits; ++i) limits[i] = static_cast<int>(spectral::class_limit(i));
  if (c < kLimits * tiles) {
    const int here = key_of(room, c / kLimits) - static_cast<int>(spectral::class_limit(c % kLimits));
    int all = 0;
    for (int t = 0; t < tiles; ++t) {
      const int key = key_of(room, t);
      int found = 0;
#pragma unroll
      for (int i = 0; i < kLimits; ++i) found += key - limits[i] >= here;
      all += spectral::width_of(found);
    }
    if (all > bits) above = here;
  }
  above = __reduce_max_sync(0xffffffffu, above);
  if (c % 32 == 0) atomicMax(room.level, above);
}

// spectral::choose_classes from there on, by one warp with a tile a lane. Returns the class of the lane's tile.
__device__ __forceinline__ int class_of_tile(const Room& room, int d, int bits) {
  const int lane = static_cast<int>(threadIdx.x);
  const bool mine = lane < d / spectral::kTile;
  const int64_t above = mine ? int64_t{key_of(room, lane)} - (*room.level + 1) : 0;
  int found = mine ? spectral::class_above(above) : 0;
  for (int left = bits - __reduce_add_sync(0xffffffffu, spectral::width_of(found));;) {
    const bool can =
        mine && found < spectral::kClasses - 1 && spectral::width_of(found + 1) - spectral::width_of(found) <= left;
    if (__ballot_sync(0xffffffffu, can) == 0) break;
    const uint32_t missing = can ? static_cast<uint32_t>(spectral::class_limit(found) - above) : UINT32_MAX;
    const bool least = missing == __reduce_min_sync(0xffffffffu, missing);
    const int best = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, least))) - 1;
    const int next = __shfl_sync(0xffffffffu, found, best) + 1;
    left -= spectral::width_of(next) - spectral::width_of(next - 1);
    if (lane == best) found = next;
  }
  return found;
}

// Columns of all channels in their order (format.h), a thread for each channel, from how many each warp has.
struct Planes {
  int counts[spectral::kPlanes];
};
__device__ __forceinline__ Planes list_columns(const Room& room, int d, int of_class, int before) {
  const int c = static_cast<int>(threadIdx.x);
  int4 all = make_int4(0, 0, 0, 0);
  for (int warp = 0; 32 * warp < d; ++warp) {
    const int4 of = room.counts[warp];
    if (warp < c / 32) before += of_class == 1 ? of.x : of_class == 2 ? of.y : of_class == 3 ? of.z : of.w;
    all = make_int4(all.x + of.x, all.y + of.y, all.z + of.z, all.w + of.w);
  }
  const Planes planes = {{2 * all.w + all.z, all.y, all.x}};
  const int twos = planes.counts[0], ones = twos + all.y;
  if (c < d && of_class != 0) {
    const int first = of_class == 4 ? 0 : of_class == 3 ? all.w : of_class == 2 ? twos : ones;
    room.columns[first + before] = static_cast<uint16_t>(of_class == 4 ? c + kHighDigit : c);
    if (of_class == 4) room.columns[all.w + all.z + before] = static_cast<uint16_t>(c + kLowDigit);
  }
  return planes;
}

// A word of a plane's codes: four columns, or four tokens.
template <int kBits>
__device__ __forceinline__ uint32_t code_word(const Room& room, int d, bool keys, int count, int first, int word) {
  uint32_t out = 0;
  const int quads = count / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int column, token;  // of the lowest bits; others are `step` tokens on
    if (keys) {
      column = word / 16 % quads * 4 + i;
      token = word / 16 / quads * (128 / kBits) + word % 16;
    } else {
      constexpr int kVectors = kPageTokens / (32 / kBits);
      column = word / 8 / kVectors * spectral::kTile + word % 8;
      token = word / 8 % kVectors * (32 / kBits) + i;
    }
    const int step = keys ? 16 : 4;
    const int marked = room.columns[first + column], c = marked % 256;
    const float last = kBits == 4 && marked >= 256 ? 255.0f : static_cast<float>((1 << kBits) - 1);
    const int shift = kBits == 4 && (marked & kHighDigit) != 0 ? 4 : 0;
    const float low = room.low[c], inverse = room.inverse_step[c];
    const float* const z = room.z + token * (d + kPad) + c;
#pragma unroll
    for (int p = 0; p < 8 / kBits; ++p) {
      const uint32_t code = spectral::code_of(z[p * step * (d + kPad)], low, inverse, last);
      out |= (code >> shift & ((1u << kBits) - 1)) << (8 * i + kBits * p);
    }
  }
  return out;
}

// Words of a plane; returns where the next begins.
template <int kBits, int kThreads>
__device__ __forceinline__ uint32_t* write_plane(const Room& room, int d, bool keys, int count, int first,
                                                 uint32_t* words) {
  const int size = count * kBits * kPageTokens / 32;
  for (int word = static_cast<int>(threadIdx.x); word < size; word += kThreads) {
    words[word] = code_word<kBits>(room, d, keys, count, first, word);
  }
  return words + size;
}

// Bytes of the head that are not codes, but for norms: a thread has a channel, a ballot 32 bits of a plane. Leaves how
// many channels of each width the warp has; returns how many of the thread's own are before it there.
template <int kThreads>
__device__ __forceinline__ int write_header(const Room& room, const spectral::Layout& layout, int of_class,
                                            spectral::Parameters stored, uint8_t* head) {
  const int d = layout.head_dim, c = static_cast<int>(threadIdx.x);
  unsigned planes[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    planes[i] = __ballot_sync(0xffffffffu, c < d && (of_class >> i & 1) != 0);
    if (c < d && c % 8 == 0) head[(i * d + c) / 8] = static_cast<uint8_t>(planes[i] >> c % 32);
  }
  if (c < d) {
    head[layout.steps + c] = stored.step;
    head[layout.lows + c] = static_cast<uint8_t>(stored.low);
  }
  for (size_t i = layout.lows + d + c; i < layout.codes; i += kThreads) head[i] = 0;
  const unsigned of[4] = {planes[0] & ~planes[1], planes[1] & ~planes[0], planes[0] & planes[1], planes[2]};
  if (c % 32 == 0 && c < d) room.counts[c / 32] = make_int4(__popc(of[0]), __popc(of[1]), __popc(of[2]), __popc(of[3]));
  const unsigned own = of_class == 1 ? of[0] : of_class == 2 ? of[1] : of_class == 3 ? of[2] : of[3];
  return __popc(own & ((1u << c % 32) - 1));
}

// The thread's channel, and how it is stored.
template <int kThreads>
__device__ __forceinline__ Planes choose_widths(const Room& room, const Params& params, uint8_t* head) {
  const int d = params.layout.head_dim, c = static_cast<int>(threadIdx.x);
  Measured measured = {};
  if (c < d) measured = measure(room, d, c);
  __syncthreads();
  const int tile = c < d ? tile_of(room, d, c) : 0;
  __syncthreads();
  find_level(room, d, params.tile_bits);
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
    room.low[c] = spectral::low_value(stored, of_class);
    room.inverse_step[c] = spectral::inverse_power(stored.step - spectral::kStepBias);
  }
  const int before = write_header<kThreads>(room, params.layout, of_class, stored, head);
  __syncthreads();
  const Planes planes = list_columns(room, d, of_class, before);
  __syncthreads();
  return planes;
}

template <int kThreads, int kSteps>
__global__ void __launch_bounds__(kThreads, kThreads == 256 ? 3 : 1)
    seal_parts(const __grid_constant__ PageList<uint8_t> parts, const __grid_constant__ Params params) {
  extern __shared__ __align__(16) uint8_t memory[];
  const int d = params.layout.head_dim, kv_head = static_cast<int>(blockIdx.y), c = static_cast<int>(threadIdx.x);
  const Room room(memory, d);
  uint8_t* const head = parts.pages[blockIdx.x] + kv_head * params.layout.bytes;
  const uint16_t* const rows =
      params.rows + kv_head * params.head_elements + static_cast<int64_t>(blockIdx.x) * kPageTokens * d;
  if (c < kMaxHeadDim / spectral::kTile) room.keys[c] = 0;
  if (c == 0) *room.level = static_cast<int>(-8 * spectral::kOctave);
  uint8_t* const norms = head + params.layout.norms;
  if (params.basis.inverse == nullptr) {
    take_rows<kThreads, false>(rows, d, room.z, norms);
  } else {
    take_rows<kThreads, true>(rows, d, room.z, norms);
    multiply<kThreads, kSteps>(params.basis, kv_head, d, room.z);
  }
  __syncthreads();
  const Planes planes = choose_widths<kThreads>(room, params, head);
  auto* words = reinterpret_cast<uint32_t*>(head + params.layout.codes);
  words = write_plane<4, kThreads>(room, d, params.keys, planes.counts[0], 0, words);
  words = write_plane<2, kThreads>(room, d, params.keys, planes.counts[1], planes.counts[0], words);
  words = write_plane<1, kThreads>(room, d, params.keys, planes.counts[2], planes.counts[0] + planes.counts[1], words);
  // What channels left of the page's bits.
  const auto* const end = reinterpret_cast<const uint32_t*>(head + params.layout.bytes);
  for (uint32_t* word = words + c; word < end; word += kThreads) *word = 0;
}

}  // namespace

bool seals_spectral_parts(int head_dim) { return shared_memory_has(Room::bytes(head_dim)); }

cudaError_t seal_spectral_parts(const SpectralSealRequest& request, cudaStream_t stream) {
  const PageFormat& format = request.format;
  const int d = format.head_dim, side = static_cast<int>(format.side), threads = threads_for(d);
  const int steps = inverse_steps(d);
  const auto kernel = steps == 2   ? seal_parts<256, 2>
                      : steps == 3 ? seal_parts<256, 3>
                      : steps == 4 ? seal_parts<256, 4>
                                   : seal_parts<512, 8>;
  const cudaError_t error = allow_shared_memory(kernel, Room::bytes(d));
  if (error != cudaSuccess) return error;
  const auto launch = [&](const PageList<uint8_t>& list, int count, int64_t first) {
    const Params params = {spectral::layout_of(format),
                           spectral::tile_bits(format),
                           format.side == Side::kKeys,
                           request.basis,
                           request.staging.sides[side] + first * kPageTokens * d,
                           request.staging.rows * d};
    kernel<<<dim3(count, format.heads), threads, Room::bytes(d), stream>>>(list, params);
    return cudaGetLastError();
  };
  return for_page_lists(request.parts, request.part_count, launch);
}

}  // namespace kvasir::cuda
