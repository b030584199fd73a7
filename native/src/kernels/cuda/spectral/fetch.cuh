// How a warp's pages come to shared memory: it has room for one head's keys and one head's values, and while it
// computes on one of them the other is on its way.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/spectral/params.h"

namespace kvasir::cuda {

class SpectralFetcher {
 public:
  // Pages first, first + stride, ... below end. slots: keys, then values; 16-byte aligned.
  __device__ SpectralFetcher(const SpectralParams& params, const uint64_t* pages, int first, int end, int stride,
                             int kv_head, int lane, uint8_t* slots)
      : params_(params), pages_(pages), keys_(first), values_(first), end_(end), stride_(stride), lane_(lane) {
    const int codes = static_cast<int>(params.layouts[0].codes), at = 16 * lane - codes;
    moves_[0] = (at ^ swapped(at >> 6)) - at;  // the same 512 bytes on
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      slots_[side] = slots + (side == 0 ? 0 : params.slot_bytes[0]);
      offsets_[side] = (side == 0 ? 0 : params.value_offset) + static_cast<int64_t>(kv_head) * params.slot_bytes[side];
    }
    release_keys();
    release_values();
  }

  // Of the vectors of keys' codes two of four have their halves swapped, so that lanes of a warp, which read a half of
  // four vectors, find them in different banks. What to flip in an offset into a vector.
  __device__ __forceinline__ static int swapped(int vector) { return (vector & 2) << 4; }

  // The keys, or values, of the next page.
  __device__ __forceinline__ const uint8_t* acquire_keys() const { return acquire(0); }
  __device__ __forceinline__ const uint8_t* acquire_values() const { return acquire(1); }

  // They were read: those of the page after it may come.
  __device__ __forceinline__ void release_keys() { keys_ = fetch<0>(keys_); }
  __device__ __forceinline__ void release_values() { values_ = fetch<1>(values_); }

 private:
  __device__ __forceinline__ const uint8_t* acquire(int side) const {
    wait_copies<1>();
    __syncwarp();
    return slots_[side];
  }

  template <int kSide>
  __device__ __forceinline__ int fetch(int page) {
    __syncwarp();
    if (page < end_) {
      const uint8_t* const from = reinterpret_cast<const uint8_t*>(__ldg(pages_ + page)) + offsets_[kSide] + 16 * lane_;
      uint32_t to = shared_address(slots_[kSide]) + 16 * lane_;
      const int codes = static_cast<int>(params_.layouts[kSide].codes), bytes = params_.slot_bytes[kSide];
      int at = 0;
#pragma unroll 1
      for (; at < codes; at += 512) {  // what the page has before its codes; the last lanes may have some of these
        const int move = at + 16 * lane_ < codes ? 0 : moves_[kSide];
        if (at + 16 * lane_ < bytes) copy16(to + at + move, from + at);
      }
      to += moves_[kSide];
#pragma unroll 4
      for (; at + 512 <= bytes; at += 512) copy16(to + at, from + at);
      if (at + 16 * lane_ < bytes) copy16(to + at, from + at);
    }
    commit_copies();
    return page + stride_;
  }

  const SpectralParams& params_;
  const uint64_t* const pages_;
  int keys_, values_;  // next pages to fetch
  const int end_, stride_, lane_;
  uint8_t* slots_[2];
  int64_t offsets_[2];
  int moves_[2] = {};  // of this lane's codes, from where they would lie
};

}  // namespace kvasir::cuda
