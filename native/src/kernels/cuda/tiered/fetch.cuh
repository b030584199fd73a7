// The ring through which a warp's pages of tiered keys come to shared memory: it fills its own, by bulk copies where
// there are (primitives/barrier.cuh), and 16 bytes a lane elsewhere.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/uniform.cuh"
#include "kernels/cuda/tiered/params.h"

namespace kvasir::cuda {

// Copies the pieces of a warp's pages, in order, each as soon as there is a slot for it. Lanes know where 32 pages are,
// and where the pieces of one begin; the rest is the same in all of them.
template <int D, int kBits, int kKeyGroup>
class TieredFetcher {
 public:
  using Pieces = TieredPieces<D, kBits, kKeyGroup>;

  // A page whose pieces are being copied. A page has as many of them as there are slots, or more, so that it is the
  // one that is used next when the page before has been used.
  struct Page {
    int n16, n4, pairs;
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
    look_ahead();
    if (kBulkCopies && lane < kTieredSlots) barrier_init(barriers_ + 8 * lane, 1);
    fence_barrier_inits();
    __syncwarp();
    for (int i = 0; i < kTieredSlots; ++i) issue(i);
  }

  __device__ __forceinline__ const Page& page() const { return page_; }

  // The next piece. The one before is no longer used: its slot is filled before this one is waited for.
  __device__ __forceinline__ const uint8_t* acquire() {
    if (used_ >= 0) {
      __syncwarp();
      issue(used_);
    }
    used_ = used_ == kTieredSlots - 1 ? 0 : used_ + 1;
    if constexpr (kBulkCopies) {
      barrier_wait(barriers_ + 8 * used_, parity_);
    } else {
      wait_copies<kTieredSlots - 1>();
      __syncwarp();
    }
    if (used_ == kTieredSlots - 1) parity_ ^= 1;
    return slots_ + used_ * kTieredSlotBytes + (skews_ >> 8 * used_ & 0xff);
  }

 private:
  static constexpr int kKnown = 32;  // pages that lanes know

  // Looks up the next page, if there is one, and asks what is in it without waiting for the answer.
  __device__ __forceinline__ void look_ahead() {
    if (next_ >= end_) return;
    if (turn_ == kKnown) {
      const int page = next_ + lane_ * params_.warps;
      address_ = page < end_ ? __ldg(pages_ + page) : 0;
      turn_ = 0;
    }
    next_address_ = __shfl_sync(0xffffffffu, static_cast<unsigned long long>(address_), turn_++);
    place_ = __ldg(reinterpret_cast<const uint2*>(next_address_) + kv_head_);
  }
  __device__ __forceinline__ void open() {
    const auto counts = static_cast<int>(uniform(place_.y));
    const int n16 = counts & 0xffff, n4 = counts >> 16;
    page_ = {n16, n4, TieredBlock{Pieces::format(), n16, n4}.pairs()};
    begin_ = begin_of_piece(page_);
    block_ = next_address_ + uniform(place_.x);
    piece_ = 0;
    next_ += params_.warps;
    look_ahead();
  }
  // Where piece `lane` begins, or where the block ends, and how many pieces there are: fewer than lanes.
  __device__ __forceinline__ int begin_of_piece(const Page& page) {
    constexpr TieredFormat kFormat = Pieces::format();
    const int bands = Pieces::band_pieces(page.pairs), wides = Pieces::wide_pieces(page.pairs, page.n16);
    const int wide_offset = kFormat.header_bytes() + kFormat.bands_bytes(page.pairs);
    const int of_bands = lane_ - 1, of_wides = of_bands - bands, of_values = of_wides - wides;
    int begin =
        Pieces::kHeaderBytes + (Pieces::kFirstPairs + of_bands * Pieces::kPairs) / kBandPairs * Pieces::kBandBytes;
    if (lane_ == 0) begin = 0;
    if (of_wides >= 0) begin = wide_offset + of_wides * Pieces::kWideBlocks * wide_bytes(kWideBlock);
    int span = wide_offset + wide_bytes(page.n16);
#pragma unroll
    for (int i = 0; i < Pieces::kSpans; ++i) {
      const int parameters = value_parameter_bytes(params_.span_groups[i]), piece = of_values - i * Pieces::kSpanPieces;
      if (piece >= 0) begin = span;
      if (piece > 0) begin = span + parameters + min(piece * kCodePieceBytes, kFormat.span_code_bytes(i));
      span += parameters + kFormat.span_code_bytes(i);
    }
    count_ = 1 + bands + wides + Pieces::kSpans * Pieces::kSpanPieces;
    return begin;
  }
  __device__ __forceinline__ void issue(int slot) {
    if (piece_ == count_ && next_ < end_) open();
    if (piece_ < count_) {
      const int begin = __shfl_sync(0xffffffffu, begin_, piece_);
      const int bytes = __shfl_sync(0xffffffffu, begin_, piece_ + 1) - begin;
      const auto* const source = reinterpret_cast<const uint8_t*>(block_ + begin);
      const int skew = line_skew(0, static_cast<uint32_t>(block_) + begin);  // slots begin with a line
      const uint32_t to = to_ + slot * kTieredSlotBytes + skew;
      skews_ = (skews_ & ~(0xffu << 8 * slot)) | static_cast<uint32_t>(skew) << 8 * slot;
      if constexpr (kBulkCopies) {
        if (lane_ == 0) {
          barrier_expect(barriers_ + 8 * slot, bytes);
          bulk_copy(to, source, bytes, barriers_ + 8 * slot, policy_);
        }
      } else {
#pragma unroll 1
        for (int i = 16 * lane_; i < bytes; i += 512) copy16(to + i, source + i);
      }
      ++piece_;
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
  uint64_t address_ = 0;       // of the lane's page
  int turn_ = kKnown;          // the lane that has the page after the next
  uint64_t next_address_ = 0;  // of the next page
  uint2 place_ = {};           // the bits of its TieredPlace
  Page page_ = {};
  uint64_t block_ = 0;         // where it is
  int begin_ = 0;              // of the lane's piece, in bytes from there
  int piece_ = 0, count_ = 0;  // the next piece of the page, of so many
  uint32_t skews_ = 0;         // where slots have their pieces, a byte each
  int used_ = -1;              // slot of the piece that is being used
  uint32_t parity_ = 0;        // of the next slot's barrier
};

}  // namespace kvasir::cuda
