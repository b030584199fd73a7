// The ring through which a warp's pages of tiered keys come to shared memory: it fills its own, by bulk copies where
// there are (primitives/barrier.cuh), and 16 bytes a lane elsewhere.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/tiered/params.h"

namespace kvasir::cuda {

// Whether any lane has the condition: so that the compiler knows that all go the same way.
__device__ __forceinline__ bool any_lane(bool condition) { return __any_sync(0xffffffffu, condition) != 0; }

// Copies the pieces of a warp's pages, in order, kAhead pieces before they are used. Each lane keeps one of the page's
// pieces in mind.
template <int D, int kBits, int kKeyGroup>
class TieredFetcher {
 public:
  using Pieces = TieredPieces<D, kBits, kKeyGroup>;
  static constexpr int kAhead = kTieredSlots - 1;

  // A page whose pieces are being copied. A page has kAhead of them or more, so that it is the one that is used next
  // when the page before has been used.
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
    here_ = address_of(next_);
    there_ = address_of(next_ + params_.warps);
    if (next_ < end_) place_ = place_at(here_);
    if (kBulkCopies && lane <= kAhead) barrier_init(barriers_ + 8 * lane, 1);
    fence_barrier_inits();
    __syncwarp();
    for (int i = 0; i < kAhead; ++i) issue(i);
  }

  __device__ __forceinline__ const Page& page() const { return page_; }

  // The next piece. The one before is no longer used.
  __device__ __forceinline__ const uint8_t* acquire() {
    if constexpr (kBulkCopies) {
      barrier_wait(barriers_ + 8 * read_, parity_);
    } else {
      wait_copies<kAhead - 1>();
    }
    __syncwarp();
    issue(read_ == 0 ? kAhead : read_ - 1);  // which was read last
    const uint8_t* const piece = slots_ + read_ * kPieceBytes;
    if (read_ == kAhead) parity_ ^= 1;
    read_ = read_ == kAhead ? 0 : read_ + 1;
    return piece;
  }

 private:
  __device__ __forceinline__ uint64_t address_of(int page) const { return page < end_ ? __ldg(pages_ + page) : 0; }
  // The bits of TieredPlace.
  __device__ __forceinline__ uint2 place_at(uint64_t page) const {
    return __ldg(reinterpret_cast<const uint2*>(page) + kv_head_);
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
  // The next page. Asks where the one after it is, whose address is known by now, and does not wait for the answer.
  __device__ __forceinline__ void open() {
    const int n16 = static_cast<int>(place_.y & 0xffff), n4 = static_cast<int>(place_.y >> 16);
    page_ = {n16, n4, TieredBlock{Pieces::format(), n16, n4}.pairs()};
    const int begin = begin_of_piece(page_);
    bytes_ = __shfl_down_sync(0xffffffffu, begin, 1) - begin;
    source_ = reinterpret_cast<const uint8_t*>(here_) + place_.x + begin;
    piece_ = 0;
    next_ += params_.warps;
    here_ = there_;
    if (next_ < end_) place_ = place_at(here_);
    there_ = address_of(next_ + params_.warps);
  }
  // Lane i copies piece i.
  __device__ __forceinline__ void issue(int slot) {
    if (any_lane(piece_ == count_ && next_ < end_)) open();
    if (any_lane(piece_ < count_)) {
      const uint32_t to = to_ + slot * kPieceBytes;
      if constexpr (kBulkCopies) {
        if (lane_ == piece_) {
          barrier_expect(barriers_ + 8 * slot, bytes_);
          bulk_copy(to, source_, bytes_, barriers_ + 8 * slot, policy_);
        }
      } else {
        const int bytes = __shfl_sync(0xffffffffu, bytes_, piece_);
        const auto source = __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(source_), piece_);
#pragma unroll 1
        for (int i = 16 * lane_; i < bytes; i += 512) copy16(to + i, reinterpret_cast<const uint8_t*>(source) + i);
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
  uint64_t here_, there_;  // addresses of the next page and of the one after it
  uint2 place_ = {};       // of the next page
  Page page_ = {};
  int piece_ = 0, count_ = 0;        // the next piece of the page, of so many
  const uint8_t* source_ = nullptr;  // this lane's piece
  int bytes_ = 0;
  int read_ = 0;         // slot
  uint32_t parity_ = 0;  // of its barrier
};

}  // namespace kvasir::cuda
