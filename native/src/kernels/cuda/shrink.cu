// Shrinking moves 16 bytes of the smaller page at a time: parameters from where they were, codes from two places of the
// wider page. Both layouts are the same to it, but for where these two places are.
//
// In place, one block works through a page from front to back. A vector of the smaller page never lies behind what it
// is made of, so what a block has yet to read is never where it writes, provided that all threads have read before any
// of them writes.
#include <algorithm>

#include "codecs/progressive/formula.h"
#include "codecs/uniform/format.h"
#include "kernels/cuda/narrow.cuh"
#include "kernels/cuda/shrink.h"

namespace kvasir::cuda {
namespace {

using progressive::Shift;

constexpr int kVectorBytes = 16;
constexpr int kInPlaceThreads = 512;
constexpr int kThreads = 256;
constexpr int kVectorsPerThread = 4;  // of a block that does not work in place

// One side of the two pages.
struct Side {
  uint32_t from_offset, from_stride, from_part;  // of kv heads, of parts of layout.h
  uint32_t to_offset, to_stride, to_part;
  uint32_t parameter_bytes;  // of a part; what follows are codes
  // Chunk i of the smaller part's codes, of 2^chunk_bits bytes, comes from pitch * i and from `distance` later.
  uint32_t chunk_bits, pitch, distance;
  uint32_t entries;  // canonical parameters: uint16 lo[entries], range[entries] in turn; 0: {range, lo} of layout.h
  int to_bits;       // 0: the part is copied
  Shift shift;
};

struct Params {
  ShrinkPage pages[kShrinksPerLaunch];
  Side sides[2];
  uint32_t vectors;  // of the smaller page
  bool head_blocks;  // both sides of a head, then the next head; else all keys, then all values
};

// 16 bytes on their way.
struct Moving {
  uint4 first, second;
  int kind;  // 0: copied; 8, 4, 2: codes of so many bits to be; kLo, kRange, kPairs: parameters to modify
  int bits;
  bool rounded;
};
constexpr int kLo = -1, kRange = -2, kPairs = -3;

__device__ __forceinline__ uint4 read(const uint8_t* page, uint32_t offset) {
  return __ldcs(reinterpret_cast<const uint4*>(page + offset));
}

__device__ __forceinline__ Moving load(const Params& params, const uint8_t* page, uint32_t vector) {
  uint32_t at = vector * kVectorBytes;
  uint32_t head = 0;
  int index;
  if (params.head_blocks) {
    head = at / params.sides[0].to_stride;
    at -= head * params.sides[0].to_stride;
    index = at >= params.sides[1].to_offset;
    at -= params.sides[index].to_offset;
  } else {
    index = at >= params.sides[1].to_offset;
    at -= params.sides[index].to_offset;
    head = at / params.sides[index].to_stride;
    at -= head * params.sides[index].to_stride;
  }
  const Side& side = params.sides[index];
  uint32_t base = side.from_offset + head * side.from_stride;
  if (at >= side.to_part) {  // the second of two parts
    at -= side.to_part;
    base += side.from_part;
  }
  Moving moving = {};
  moving.bits = side.to_bits;
  moving.rounded = side.shift == Shift::kEquivalent;
  if (side.to_bits == 0 || at < side.parameter_bytes) {
    moving.first = read(page, base + at);
    if (side.to_bits == 0 || side.shift != Shift::kModified) return moving;
    if (side.entries == 0) {
      moving.kind = kPairs;
    } else if (at / (2 * side.entries) % 2 == 1) {
      moving.kind = kRange;
    } else {
      moving.kind = kLo;
      moving.second = read(page, base + at + 2 * side.entries);
    }
    return moving;
  }
  at -= side.parameter_bytes;
  const uint32_t chunk = at >> side.chunk_bits;
  const uint32_t from = base + side.parameter_bytes + chunk * side.pitch + (at - (chunk << side.chunk_bits));
  moving.first = read(page, from);
  moving.second = read(page, from + side.distance);
  moving.kind = side.to_bits;
  return moving;
}

// Two parameters in the halves of a word, as progressive::modify_parameters leaves them.
__device__ uint32_t modified(const Moving& moving, uint32_t first, uint32_t second) {
  uint16_t lo[2], range[2];
  if (moving.kind == kPairs) {
    lo[0] = static_cast<uint16_t>(first >> 16), range[0] = static_cast<uint16_t>(first);
    progressive::modify_parameters(moving.bits, &lo[0], &range[0]);
    return range[0] | static_cast<uint32_t>(lo[0]) << 16;
  }
  // Of a range nothing but itself is needed; its lo may be gone already.
  const uint32_t los = moving.kind == kLo ? first : 0, ranges = moving.kind == kLo ? second : first;
  for (int i = 0; i < 2; ++i) {
    lo[i] = static_cast<uint16_t>(los >> 16 * i), range[i] = static_cast<uint16_t>(ranges >> 16 * i);
    progressive::modify_parameters(moving.bits, &lo[i], &range[i]);
  }
  return moving.kind == kLo ? lo[0] | static_cast<uint32_t>(lo[1]) << 16
                            : range[0] | static_cast<uint32_t>(range[1]) << 16;
}

__device__ __forceinline__ void store(uint8_t* page, uint32_t vector, const Moving& moving) {
  uint4 out = moving.first;
  if (moving.kind > 0) {
    out.x = narrow_words(moving.first.x, moving.second.x, moving.kind, moving.rounded);
    out.y = narrow_words(moving.first.y, moving.second.y, moving.kind, moving.rounded);
    out.z = narrow_words(moving.first.z, moving.second.z, moving.kind, moving.rounded);
    out.w = narrow_words(moving.first.w, moving.second.w, moving.kind, moving.rounded);
  } else if (moving.kind < 0) {
    out.x = modified(moving, moving.first.x, moving.second.x);
    out.y = modified(moving, moving.first.y, moving.second.y);
    out.z = modified(moving, moving.first.z, moving.second.z);
    out.w = modified(moving, moving.first.w, moving.second.w);
  }
  reinterpret_cast<uint4*>(page)[vector] = out;
}

__global__ void __launch_bounds__(kThreads) shrink_apart(const __grid_constant__ Params params) {
  const ShrinkPage& page = params.pages[blockIdx.y];
  const uint32_t first = blockIdx.x * (kThreads * kVectorsPerThread) + threadIdx.x;
  Moving moving[kVectorsPerThread];
#pragma unroll
  for (uint32_t i = 0; i < kVectorsPerThread; ++i) {
    if (first + i * kThreads < params.vectors) moving[i] = load(params, page.from, first + i * kThreads);
  }
#pragma unroll
  for (uint32_t i = 0; i < kVectorsPerThread; ++i) {
    if (first + i * kThreads < params.vectors) store(page.to, first + i * kThreads, moving[i]);
  }
}

__global__ void __launch_bounds__(kInPlaceThreads) shrink_in_place(const __grid_constant__ Params params) {
  uint8_t* const page = params.pages[blockIdx.x].to;
  uint32_t vector = threadIdx.x;
  Moving moving = {};
  if (vector < params.vectors) moving = load(params, page, vector);
  for (uint32_t begin = 0; begin < params.vectors; begin += kInPlaceThreads) {
    const uint32_t next = vector + kInPlaceThreads;
    __syncthreads();
    Moving ahead = {};
    if (next < params.vectors) ahead = load(params, page, next);
    if (vector < params.vectors) store(page, vector, moving);
    moving = ahead;
    vector = next;
  }
}

static_assert(kGroupBytes == 1 << 9 && CodePlane::kVectorBytes == 1 << 6, "chunk_bits below");

bool make_side(const SideFormat& from, const SideFormat& to, Side* out) {
  Side side = {};
  side.from_offset = static_cast<uint32_t>(from.offset);
  side.from_stride = static_cast<uint32_t>(from.stride);
  side.to_offset = static_cast<uint32_t>(to.offset);
  side.to_stride = static_cast<uint32_t>(to.stride);
  const bool same = from.codec == to.codec && from.fragments == to.fragments && from.format.axis == to.format.axis &&
                    from.format.group == to.format.group && from.format.head_dim == to.format.head_dim;
  if (!same || from.codec == StoredCodec::kNone) return false;
  const int parts = from.fragments ? from.parts() : 1;
  side.from_part = static_cast<uint32_t>(from.bytes() / parts);
  side.to_part = static_cast<uint32_t>(to.bytes() / parts);
  if (from.format.bits == to.format.bits) {
    *out = side;
    return true;
  }
  if (from.codec != StoredCodec::kProgressive || from.format.bits != 2 * to.format.bits) return false;
  if (parts > 2) return false;
  side.to_bits = to.format.bits;
  side.shift = static_cast<Shift>(static_cast<int>(to.format.numbers[progressive::kShift]));
  if (from.fragments) {
    side.parameter_bytes = static_cast<uint32_t>(from.part().parameter_bytes());
    side.chunk_bits = 9;
    side.distance = kGroupBytes;
    side.pitch = 2 * kGroupBytes;
  } else {
    const uniform::Layout layout = uniform::layout_of(from.format);
    side.parameter_bytes = static_cast<uint32_t>(layout.plane_offset[0]);
    side.entries = static_cast<uint32_t>(layout.entries);
    const bool planes = layout.plane_count == 2;
    side.chunk_bits = 6;
    side.pitch = (planes ? 1 : 2) * CodePlane::kVectorBytes;
    side.distance = planes ? static_cast<uint32_t>(layout.planes[0].bytes()) : CodePlane::kVectorBytes;
  }
  *out = side;
  return true;
}

}  // namespace

cudaError_t shrink_pages(const ShrinkRequest& request, cudaStream_t stream) {
  if (request.page_count < 0) return cudaErrorInvalidValue;
  if (request.page_count == 0) return cudaSuccess;
  Params params = {};
  for (int i = 0; i < 2; ++i) {
    if (!make_side(request.from[i], request.to[i], &params.sides[i])) return cudaErrorInvalidValue;
  }
  if (request.from[0].fragments != request.from[1].fragments) return cudaErrorInvalidValue;
  const int64_t bytes = page_bytes(request.shape.kv_heads, request.to);
  if (page_bytes(request.shape.kv_heads, request.from) > INT32_MAX) return cudaErrorInvalidValue;
  params.vectors = static_cast<uint32_t>(bytes / kVectorBytes);
  params.head_blocks = request.from[0].fragments;

  const ShrinkPage* const end = request.pages + request.page_count;
  const int64_t in_place = std::count_if(request.pages, end, [](const ShrinkPage& p) { return p.from == p.to; });
  if (in_place != 0 && in_place != request.page_count) return cudaErrorInvalidValue;
  for (const ShrinkPage* first = request.pages; first < end; first += kShrinksPerLaunch) {
    const auto count = static_cast<unsigned>(std::min<int64_t>(end - first, kShrinksPerLaunch));
    std::copy_n(first, count, params.pages);
    if (in_place != 0) {
      shrink_in_place<<<count, kInPlaceThreads, 0, stream>>>(params);
    } else {
      constexpr int kPerBlock = kThreads * kVectorsPerThread;
      shrink_apart<<<dim3((params.vectors + kPerBlock - 1) / kPerBlock, count), kThreads, 0, stream>>>(params);
    }
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace kvasir::cuda
