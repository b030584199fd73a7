// Codes of CommVQ's keys on their way from pages to look-ups in planes.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/barrier.cuh"

namespace kvasir::cuda {

// Codes of two tiles, which begin at an even one: lane p takes those of plane p. Stages lie far apart, so that what
// counts is how many loads there are, not how many bytes.
class PlaneCodes {
 public:
  // `offset` in a page of what this lane's plane has, and its level. A negative offset and level 0 if there is no
  // plane: its codes are all 0.
  __device__ PlaneCodes(int index_bits, int offset, int level)
      : bits_(index_bits), offset_(offset), levels_(level << 12 | level << 28) {}

  __device__ __forceinline__ void fetch(const uint8_t* page, int tile) {
    if (offset_ < 0) return;
    const uint8_t* from = page + offset_ + tile / 2 * (8 * bits_);
    if (bits_ == 6) {
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const uint4 four = load16(from + 16 * i, evict_first());
        words_[4 * i] = four.x;
        words_[4 * i + 1] = four.y;
        words_[4 * i + 2] = four.z;
        words_[4 * i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 10; ++i) {
        if (i < 2 * bits_) words_[i] = __ldg(reinterpret_cast<const uint32_t*>(from) + i);
      }
    }
  }

  // Those of one tile to shared memory: words of tokens k and k + 8, each of which is a + 64 b + 4096 level. k = 0..3
  // go to `first_words`, the others to `last_words`.
  __device__ __forceinline__ void expand(int tile, uint32_t* first_words, uint32_t* last_words) const {
    const bool odd = tile % 2 != 0;
    uint32_t first[3], second[3];  // tokens 0..7 and 8..15
    uint32_t both[8] = {};
    if (bits_ == 6) {
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        first[i] = odd ? words_[i + 6] : words_[i];
        second[i] = odd ? words_[i + 9] : words_[i + 3];
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int word = 12 * k / 32, shift = 12 * k % 32;
        const uint32_t x = __funnelshift_r(first[word], first[min(word + 1, 2)], shift);
        const uint32_t y = __funnelshift_r(second[word], second[min(word + 1, 2)], shift);
        both[k] = (__byte_perm(x, y, 0x5410) & 0x0fff0fffu) | levels_;
      }
    } else {
      const uint32_t mask = (1u << bits_) - 1;
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        first[i] = bits_ == 5 ? (odd ? words_[i + 5] : words_[i]) : odd ? words_[i + 4] : words_[i];
        const uint32_t low = odd ? words_[i + 7] : words_[i + 2], high = odd ? words_[i + 8] : words_[i + 3];
        second[i] = bits_ == 5 ? __funnelshift_r(low, high, 16) : odd ? words_[i + 6] : words_[i + 2];
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const uint32_t pair = __byte_perm(first[0], second[0], 0x5410);
        both[k] = (pair & (mask | mask << 16)) | (pair >> bits_ & (mask | mask << 16)) << 6 | levels_;
        next(first);
        next(second);
      }
    }
    *reinterpret_cast<uint4*>(first_words) = {both[0], both[1], both[2], both[3]};
    *reinterpret_cast<uint4*>(last_words) = {both[4], both[5], both[6], both[7]};
  }

 private:
  __device__ __forceinline__ void next(uint32_t (&words)[3]) const {
    words[0] = __funnelshift_r(words[0], words[1], 2 * bits_);
    words[1] = __funnelshift_r(words[1], words[2], 2 * bits_);
    words[2] >>= 2 * bits_;
  }

  const int bits_, offset_;
  const uint32_t levels_;
  uint32_t words_[12] = {};
};

}  // namespace kvasir::cuda
