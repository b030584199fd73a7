// The ring through which a warp's pages of tiered keys come to shared memory: it fills its own, by bulk copies where
// there are (primitives/barrier.cuh), and 16 bytes a lane elsewhere.
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

  // barriers: of the slots, which nothing has used.
  __device__ TieredFetcher(const TieredParams& params, const uint64_t* pages, int first, int end, int kv_head, int lane,
                           uint8_t* slots, uint64_t* barriers)
      : params_(params),
        pages_(pages),
        next_(first),
        end_(end),
        kv_head_(kv_head),
        lane_(lane),
        slots_(slots),
        to_(shared_address(slots)),
        barriers_(shared_address(barriers)),
        policy_(evict_first()) {
    if (next_ < end_) place_ = resolve(next_);
    if (kBulkCopies && lane < kTieredSlots) barrier_init(barriers_ + 8 * lane, 1);
    fence_barrier_inits();
    __syncwarp();
    open();
    for (int i = 0; i < kAhead; ++i) issue(i);
  }

  __device__ __forceinline__ const Page& page() const { return page_; }

  // Value chunk `v` of the page. The page is the next one from value chunk D / 32 - kAhead on.
  __device__ __forceinline__ const uint8_t* acquire_values(int v) {
    if (v == D / 32 - kAhead) open();
    return acquire();
  }

  // The next chunk.
  __device__ __forceinline__ const uint8_t* acquire() {
    if constexpr (kBulkCopies) {
      barrier_wait(barriers_ + 8 * read_, parity_);
    } else {
      wait_copies<kAhead - 1>();
    }
    __syncwarp();
    issue(read_ == 0 ? kAhead : read_ - 1);  // which was read last
    const uint8_t* const chunk = slots_ + read_ * kSlotBytes;
    if (read_ == kAhead) parity_ ^= 1;
    read_ = read_ == kAhead ? 0 : read_ + 1;
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
    source_ = page_.block + D - bounds_;
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
      const uint32_t to = to_ + slot * kSlotBytes;
      if constexpr (kBulkCopies) {
        if (lane_ == 0) {
          barrier_expect(barriers_ + 8 * slot, bytes);
          bulk_copy(to, source_, bytes, barriers_ + 8 * slot, policy_);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kSlotBytes; i += 512) {
          if (i < bytes - 16 * lane_) copy16(to + 16 * lane_ + i, source_ + 16 * lane_ + i);
        }
      }
      source_ += bytes;
    }
    if constexpr (!kBulkCopies) commit_copies();
  }

  const TieredParams& params_;
  const uint64_t* const pages_;
  int next_;  // page
  const int end_, kv_head_, lane_;
  const uint8_t* const slots_;
  const uint32_t to_, barriers_;  // of the first slot
  const CachePolicy policy_;
  bool more_ = false;    // chunks of page_
  Resolved place_ = {};  // of the next page
  Page page_ = {};
  const uint8_t* source_ = nullptr;  // of the next chunk
  int at_ = 0;                       // the next chunk: of values from 0 on, of keys before
  int bounds_ = 0;                   // bytes of key bounds before it
  int read_ = 0;                     // slot
  uint32_t parity_ = 0;              // of its barrier
};

}  // namespace kvasir::cuda
