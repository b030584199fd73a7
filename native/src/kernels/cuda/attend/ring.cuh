// The ring of shared-memory slots between the producer warp and one consumer warp.
//
// A unit of work is a contiguous piece of device memory: the parts of a head block, or the two sides of a row tile. It
// is copied in chunks of up to kChunkGroups groups, one chunk a slot. A part that fits into the chunk of the part
// before it joins that chunk, parameters and all; else it begins a new one. The chunk that opens a unit also carries a
// tag.
#pragma once

#include "kernels/cuda/attend/unit_tag.h"
#include "kernels/cuda/layout/fragments.h"
#include "kernels/cuda/primitives/barrier.cuh"

namespace kvasir::cuda {

// Groups, and the parameters of as many parts as may join.
template <int D>
constexpr int kSlotBytes = kChunkGroups* kGroupBytes + 4 * 2 * (D > kPageTokens ? D : kPageTokens);
static_assert(kValueSpan == kPageTokens, "parameters of all parts of a side: one a channel, or one a token and span");

// Addresses of a ring's parts. `first` is the start of shared memory, 128-byte aligned.
template <int D>
struct RingPlace {
  uint8_t* first;
  int rings;
  int slots;

  static constexpr int kOverhead = sizeof(Tag) + 2 * 8;
  KVASIR_HOST_DEVICE static constexpr int bytes(int rings, int slots) {
    return rings * slots * (kSlotBytes<D> + kOverhead);
  }
  __device__ uint8_t* slot(int ring, int slot) const { return first + (ring * slots + slot) * kSlotBytes<D>; }
  __device__ Tag* tag(int ring, int slot) const {
    return reinterpret_cast<Tag*>(first + rings * slots * kSlotBytes<D>) + ring * slots + slot;
  }
  // full: the chunk is there. empty: it has been read.
  __device__ uint32_t full(int ring, int slot) const {
    return shared_address(tag(rings, 0)) + 8 * (ring * slots + slot);
  }
  __device__ uint32_t empty(int ring, int slot) const { return full(rings, 0) + 8 * (ring * slots + slot); }
  // Of floats, from a ring to the next.
  __device__ int stride() const { return slots * kSlotBytes<D> / 4; }
  __device__ uint8_t* end() const { return first + rings * slots * (kSlotBytes<D> + kOverhead); }
};

// The consumer's end: goes through the parts of a unit in order, and through the groups of a part in order.
template <int D>
class Reader {
 public:
  static constexpr int kHeadDim = D;

  __device__ Reader(const RingPlace<D>& place, int ring, int lane)
      : place_(place),
        lane_(lane),
        slot_(ring * place.slots * kSlotBytes<D>),
        tag_(static_cast<uint32_t>(reinterpret_cast<uint8_t*>(place.tag(ring, 0)) - place.first)),
        full_(place.full(ring, 0)) {
    // The compiler must not think that it could work them out again for each page.
    asm("" : "+r"(slot_), "+r"(tag_), "+r"(full_));
  }

  // Waits for the next chunk, and stands at its beginning.
  __device__ __forceinline__ void acquire() {
    barrier_wait(full_ + 8 * position_.slot, position_.parity);
    at_ = place_.first + slot_ + position_.slot * kSlotBytes<D>;
  }
  __device__ Tag tag() const {
    return *reinterpret_cast<const Tag*>(place_.first + tag_ + position_.slot * static_cast<int>(sizeof(Tag)));
  }

  // Between parts: stays in the chunk, or goes on to the next.
  __device__ __forceinline__ void next_part(bool joins) {
    if (joins) return;
    release();
    acquire();
  }
  // After the last part.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (lane_ == 0) barrier_arrive(full_ + 8 * (place_.rings * place_.slots + position_.slot));
    position_.advance(place_.slots);
  }

  // Where it stands.
  __device__ const uint8_t* position() const { return at_; }
  // Labels of both sides, which stand before the keys of some pages: 16 bytes a lane of the first half of the warp.
  __device__ __forceinline__ uint4 labels() const { return *reinterpret_cast<const uint4*>(at_ + lane_ % 16 * 16); }

  // The parameters {range, lo} of the lane's x = lane / 4 + 8 * (4 * index + 0..3).
  __device__ __forceinline__ uint4 parameters(int index) const {
    return *reinterpret_cast<const uint4*>(at_ + 128 * index + lane_ / 4 * 16);
  }
  __device__ __forceinline__ void skip_parameters(int bytes) { at_ += bytes; }

  // The next group, which is the index-th of `total` in its part.
  __device__ __forceinline__ uint4 group(int index, int total) {
    if (index > 0 && index % kChunkGroups == 0) {
      release();
      acquire();
    }
    const uint4 words = *reinterpret_cast<const uint4*>(at_ + index % kChunkGroups * kGroupBytes + lane_ * 16);
    if (index == total - 1) at_ += (index % kChunkGroups + 1) * kGroupBytes;
    return words;
  }

  // The next `count` groups, which are `index` and on, of `total` in their part, and are in one chunk: this lane's
  // bytes of the first.
  __device__ __forceinline__ const uint8_t* groups(int index, int count, int total) {
    if (index > 0 && index % kChunkGroups == 0) {
      release();
      acquire();
    }
    const uint8_t* const first = at_ + index % kChunkGroups * kGroupBytes + lane_ * 16;
    if (index + count == total) at_ += (index % kChunkGroups + count) * kGroupBytes;
    return first;
  }

 private:
  const RingPlace<D> place_;
  const int lane_;
  // Of the ring's first slot: bytes from the first ring, those of its tag, and the address of RingPlace::full.
  uint32_t slot_, tag_, full_;
  RingPosition position_;
  const uint8_t* at_ = nullptr;  // the current part in this chunk
};

}  // namespace kvasir::cuda
