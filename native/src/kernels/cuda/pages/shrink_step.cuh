// Shrinking moves 16 bytes of the smaller page at a time: parameters from where they were, codes from two places of the
// wider page. Both layouts are the same to it, but for where these two places are.
#pragma once

#include <vector_types.h>

#include "codecs/progressive/formula.h"
#include "kernels/cuda/layout/side_format.h"
#include "kernels/cuda/pages/narrow_codes.cuh"

namespace kvasir::cuda {

using progressive::Shift;

constexpr int kVectorBytes = 16;

// One side of the two pages.
struct ShrinkSide {
  uint32_t from_offset, from_stride, from_part;  // of kv heads, of parts of layout/fragments.h
  uint32_t to_offset, to_stride, to_part;
  uint32_t per_stride;       // reciprocal_of(to_stride)
  uint32_t parameter_bytes;  // of a part; what follows are codes
  // Chunk i of the smaller part's codes, of 2^chunk_bits bytes, comes from pitch * i and from `distance` later.
  uint32_t chunk_bits, pitch, distance;
  uint32_t entries;  // canonical parameters: uint16 lo[entries], range[entries] in turn; 0: {range, lo} of
                     // layout/fragments.h
  int to_bits;       // 0: the part is copied
  Shift shift;
};

// Both sides of all kv heads.
struct ShrinkPlan {
  ShrinkSide sides[2];
  uint32_t vectors;  // of the smaller page
  bool modifies;     // some side has parameters to modify
  bool head_blocks;  // both sides of a head, then the next head; else all keys, then all values
};

// False where `to` is not what `from` may become.
bool plan_shrink(int kv_heads, const SideFormat from[2], const SideFormat to[2], ShrinkPlan* plan);

// 16 bytes on their way.
struct Moving {
  uint4 first, second;
  int kind;  // 0: copied; 8, 4, 2: codes of so many bits to be; kLo, kRange, kPairs: parameters to modify
  int bits;
  bool rounded;
};
constexpr int kLo = -1, kRange = -2, kPairs = -3;

KVASIR_HOST_DEVICE inline uint4 read_vector(const uint8_t* page, uint32_t offset) {
#ifdef __CUDA_ARCH__
  return __ldcs(reinterpret_cast<const uint4*>(page + offset));  // nobody reads it again
#else
  return *reinterpret_cast<const uint4*>(page + offset);
#endif
}

constexpr uint32_t reciprocal_of(uint32_t stride) { return static_cast<uint32_t>((uint64_t{1} << 32) / stride); }

// Into which kv head's bytes of a side `at` falls; `at` becomes the place in them.
KVASIR_HOST_DEVICE inline uint32_t take_head(const ShrinkSide& side, uint32_t* at) {
  uint32_t head = static_cast<uint32_t>(uint64_t{*at} * side.per_stride >> 32);  // or one more: the reciprocal was cut
  *at -= head * side.to_stride;
  if (*at >= side.to_stride) {
    *at -= side.to_stride;
    ++head;
  }
  return head;
}

// kModifies is the plan's: arithmetic on parameters takes twice the registers of all else.
template <bool kModifies>
KVASIR_HOST_DEVICE inline Moving load_vector(const ShrinkPlan& plan, const uint8_t* page, uint32_t vector) {
  uint32_t at = vector * kVectorBytes;
  uint32_t head = 0;
  int index;
  if (plan.head_blocks) {
    head = take_head(plan.sides[0], &at);
    index = at >= plan.sides[1].to_offset;
    at -= plan.sides[index].to_offset;
  } else {
    index = at >= plan.sides[1].to_offset;
    at -= plan.sides[index].to_offset;
    head = take_head(plan.sides[index], &at);
  }
  const ShrinkSide& side = plan.sides[index];
  uint32_t base = side.from_offset + head * side.from_stride;
  if (at >= side.to_part) {  // the second of two parts
    at -= side.to_part;
    base += side.from_part;
  }
  Moving moving = {};
  moving.bits = side.to_bits;
  moving.rounded = side.shift == Shift::kEquivalent;
  if (side.to_bits == 0 || at < side.parameter_bytes) {
    moving.first = read_vector(page, base + at);
    if (!kModifies || side.to_bits == 0 || side.shift != Shift::kModified) return moving;
    if (side.entries == 0) {
      moving.kind = kPairs;
    } else if (at / (2 * side.entries) % 2 == 1) {
      moving.kind = kRange;
    } else {
      moving.kind = kLo;
      moving.second = read_vector(page, base + at + 2 * side.entries);
    }
    return moving;
  }
  at -= side.parameter_bytes;
  const uint32_t chunk = at >> side.chunk_bits;
  const uint32_t from = base + side.parameter_bytes + chunk * side.pitch + (at - (chunk << side.chunk_bits));
  moving.first = read_vector(page, from);
  moving.second = read_vector(page, from + side.distance);
  moving.kind = side.to_bits;
  return moving;
}

// Two parameters in the halves of a word, as progressive::modify_parameters leaves them.
KVASIR_HOST_DEVICE inline uint32_t modified(const Moving& moving, uint32_t first, uint32_t second) {
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

template <bool kModifies>
KVASIR_HOST_DEVICE inline void store_vector(uint8_t* page, uint32_t vector, const Moving& moving) {
  uint4 out = moving.first;
  if (moving.kind > 0) {
    out.x = narrow_words(moving.first.x, moving.second.x, moving.kind, moving.rounded);
    out.y = narrow_words(moving.first.y, moving.second.y, moving.kind, moving.rounded);
    out.z = narrow_words(moving.first.z, moving.second.z, moving.kind, moving.rounded);
    out.w = narrow_words(moving.first.w, moving.second.w, moving.kind, moving.rounded);
  } else if (kModifies && moving.kind < 0) {
    out.x = modified(moving, moving.first.x, moving.second.x);
    out.y = modified(moving, moving.first.y, moving.second.y);
    out.z = modified(moving, moving.first.z, moving.second.z);
    out.w = modified(moving, moving.first.w, moving.second.w);
  }
  reinterpret_cast<uint4*>(page)[vector] = out;
}

}  // namespace kvasir::cuda
