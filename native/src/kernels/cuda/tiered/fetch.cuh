// The ring through which a warp's pages of tiered keys come to shared memory: it fills its own.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/tiered/params.h"

namespace kvasir::cuda {

// Copies the chunks of a warp's pages, in order, kAhead chunks before they are used.
template <int D, int kBits, int kKeyGroup>
class TieredFetcher {
 public:
  static constexpr int kAhead = kTieredSlots - 1;
  static_assert(kAhead <= D / 32, "the first chunk of a page is copied while values of the page before are used");

  // A page whose chunks are being copied.
  struct Page {
    const uint8_t* block;
    int n16, n4;
    KeyChunks chunks;

    // The channels of the 16-bit tier. value_bytes: those of TieredParams.
    __device__ __forceinline__ const uint8_t* wide_tier(int value_bytes) const {
      return block + D + chunks.wide * kWideBytes + chunks.narrow * kNarrowBytes + value_bytes;
    }
  };

  __device__ TieredFetcher(const TieredParams& params, const uint64_t* pages, int first, int end, int kv_head, int lane,
                           uint8_t* slots)
      : params_(params),
        pages_(pages),
        next_(first),
        end_(end),
        kv_head_(kv_head),
        lane_(lane),
        slots_(slots),
        to_(shared_address(slots + 16 * lane)) {
    if (next_ < end_) place_ = resolve(next_);
    open();
    for (int i = 0; i < kAhead; ++i) issue(i * kSlotBytes);
  }

  __device__ __forceinline__ const Page& page() const { return page_; }

  // Value chunk `v` of the page. The page is the next one from value chunk D / 32 - kAhead on.
  __device__ __forceinline__ const uint8_t* acquire_values(int v) {
    if (v == D / 32 - kAhead) open();
    return acquire();
  }

  // The next chunk.
  __device__ __forceinline__ const uint8_t* acquire() {
    wait_copies<kAhead - 1>();
    __syncwarp();
    issue(read_ == 0 ? kAhead * kSlotBytes : read_ - kSlotBytes);  // which was read last
    const uint8_t* const chunk = slots_ + read_;
    read_ = read_ == kAhead * kSlotBytes ? 0 : read_ + kSlotBytes;
    return chunk;
  }

 private:
  static constexpr int kSlotBytes = tiered_slot_bytes(D, kBits);
  static constexpr TieredFormat kFormat = {D, kBits, kKeyGroup, 32};  // but for the groups of values
  static constexpr int kWideBytes = kFormat.wide_chunk_bytes(), kNarrowBytes = kFormat.narrow_chunk_bytes();
  static constexpr int kValueCodeBytes = kFormat.value_code_bytes();

  struct Resolved {
    const uint8_t* block;
    uint32_t counts;  // n16, n4 of TieredPlace
  };

  __device__ __forceinline__ Resolved resolve(int page) const {
    const auto* base = reinterpret_cast<const uint8_t*>(__ldg(pages_ + page));
    const uint2 place = __ldg(reinterpret_cast<const uint2*>(base) + kv_head_);
    return {base + place.x, place.y};
  }
  // The next page, if there is one; finds out where the one after it is, without waiting.
  __device__ __forceinline__ void open() {
    more_ = next_ < end_;
    if (!more_) return;
    const int n16 = static_cast<int>(place_.counts & 0xffff), n4 = static_cast<int>(place_.counts >> 16);
    page_ = {place_.block, n16, n4, key_chunks(D - n16 - n4, n4, kWideBytes, kNarrowBytes)};
    at_ = -page_.chunks.wide - page_.chunks.narrow;
    bounds_ = at_ < 0 ? D : 0;
    source_ = page_.block + D - bounds_ + 16 * lane_;
    next_ += kTieredWarps;
    if (next_ < end_) place_ = resolve(next_);
    if (128 * lane_ < 256 * n16) prefetch(page_.wide_tier(params_.value_bytes) + 128 * lane_);
  }
  __device__ __forceinline__ void issue(int slot) {
    if (more_) {
      int bytes = kValueCodeBytes;
      if (at_ < 0) {
        bytes = at_ < -page_.chunks.narrow ? kWideBytes : kNarrowBytes;
      } else if ((params_.value_groups >> at_ & 1) != 0) {
        bytes += kValueParameterBytes;
      }
      bytes += bounds_;
      bounds_ = 0;
      ++at_;
      const int mine = bytes - 16 * lane_;
#pragma unroll
      for (int i = 0; i < kSlotBytes; i += 512) {
        if (i < mine) copy16(to_ + slot + i, source_ + i);
      }
      source_ += bytes;
    }
    commit_copies();
  }

  const TieredParams& params_;
  const uint64_t* const pages_;
  int next_;  // page
  const int end_, kv_head_, lane_;
  const uint8_t* const slots_;
  const uint32_t to_;    // in the first slot
  bool more_ = false;    // chunks of page_
  Resolved place_ = {};  // of the next page
  Page page_ = {};
  const uint8_t* source_ = nullptr;  // of this lane's part of the next chunk
  int at_ = 0;                       // the next chunk: of values from 0 on, of keys before
  int bounds_ = 0;                   // bytes of key bounds before it
  int read_ = 0;                     // slot
};

}  // namespace kvasir::cuda
