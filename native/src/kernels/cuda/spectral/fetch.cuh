// How a warp's pages come to shared memory: it has room for one head's keys and one head's values, and while it
// computes on one of them the other is on its way. Bulk copies where there are (primitives/barrier.cuh): copied 16
// bytes a lane, pages took a third of all that shared memory moves.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/uniform.cuh"
#include "kernels/cuda/spectral/params.h"

namespace kvasir::cuda {

class SpectralFetcher {
 public:
  // Pages first, first + stride, ... below end. slots: for keys, then values, kPartAlignment bytes longer than they
  // are. barriers: two, which nothing has used.
  __device__ SpectralFetcher(const SpectralParams& params, const uint64_t* pages, int first, int end, int stride,
                             int kv_head, int lane, uint8_t* slots, uint8_t* barriers)
      : params_(params),
        pages_(pages),
        next_(first),
        end_(end),
        stride_(stride),
        kv_head_(kv_head),
        lane_(lane),
        slots_(slots),
        barriers_(shared_address(barriers)),
        policy_(evict_first()) {
    if (kBulkCopies && lane < 2) barrier_init(barriers_ + 8 * lane, 1);
    fence_barrier_inits();
    find_next();
    release_keys();
    release_values();
  }

  // The keys, or values, of the next page.
  __device__ __forceinline__ const uint8_t* acquire_keys() const { return acquire(0); }
  __device__ __forceinline__ const uint8_t* acquire_values() {
    const uint8_t* const values = acquire(1);
    parity_ ^= 1;
    return values;
  }

  // They were read: those of the page after it may come.
  __device__ __forceinline__ void release_keys() {
    page_ = uniform(found_);
    fetch(0);
    next_ += stride_;
    find_next();
  }
  __device__ __forceinline__ void release_values() { fetch(1); }

 private:
  // Where the page is that keys are fetched of next, without waiting.
  __device__ __forceinline__ void find_next() {
    found_ = next_ < end_ ? reinterpret_cast<const uint8_t*>(__ldg(pages_ + next_)) : nullptr;
  }

  __device__ __forceinline__ uint8_t* slot(int side) const {
    return slots_ + (side == 0 ? 0 : params_.part_bytes[0] + kPartAlignment);
  }

  __device__ __forceinline__ const uint8_t* acquire(int side) const {
    if constexpr (kBulkCopies) {
      barrier_wait(barriers_ + 8 * side, parity_);
    } else {
      wait_copies<1>();
    }
    __syncwarp();
    return slot(side) + skews_[side];
  }

  __device__ __forceinline__ void fetch(int side) {
    __syncwarp();  // what is in the slot was read
    if (page_ != nullptr) {
      const int bytes = params_.part_bytes[side];
      const uint8_t* const from =
          page_ + (side == 0 ? 0 : params_.value_offset) + static_cast<int64_t>(kv_head_) * bytes;
      uint32_t to = shared_address(slot(side));
      skews_[side] = line_skew(to, static_cast<uint32_t>(reinterpret_cast<uint64_t>(from)));
      to += skews_[side];
      if constexpr (kBulkCopies) {
        if (lane_ == 0) {
          barrier_expect(barriers_ + 8 * side, bytes);
          bulk_copy(to, from, bytes, barriers_ + 8 * side, policy_);
        }
      } else {
        for (int at = 16 * lane_; at < bytes; at += 512) copy16(to + at, from + at);
      }
    }
    if constexpr (!kBulkCopies) commit_copies();
  }

  const SpectralParams& params_;
  const uint64_t* const pages_;
  int next_;  // page whose keys are fetched next
  const int end_, stride_, kv_head_, lane_;
  uint8_t* const slots_;
  const uint32_t barriers_;
  const CachePolicy policy_;
  const uint8_t* found_ = nullptr;  // page next_; null: there is none
  const uint8_t* page_ = nullptr;   // whose values are fetched next
  int skews_[2] = {};               // where slots have their parts
  uint32_t parity_ = 0;             // of both barriers, until the values of a page are there
};

}  // namespace kvasir::cuda
