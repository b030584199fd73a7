// The producer warp: lane i keeps the ring of consumer warp i full.
//
// A lane walks its warp's units chunk by chunk. Head blocks and row tiles are contiguous, so the source only moves
// forward inside a unit; where the next unit lies is loaded one unit ahead.
#pragma once

#include "kernels/cuda/attend/ring.cuh"
#include "kernels/cuda/attend/work.cuh"
#include "kernels/cuda/layout/labels.h"

namespace kvasir::cuda {

template <int D>
class ChunkCursor {
 public:
  __device__ ChunkCursor(const AttendParams& params, const Work& work, UnitRange range)
      : params_(params), work_(work), unit_(range.begin), first_(range.begin), end_(range.end) {
    if (done()) return;
    position_ = work_.locate(unit_);
    enter_sequence();
    open_unit();
  }

  __device__ bool done() const { return unit_ >= end_; }

  // The chunk that comes next.
  __device__ const uint8_t* source() const { return source_; }
  __device__ int bytes() const { return bytes_; }
  __device__ bool opens_unit() const { return opens_unit_; }
  __device__ const Tag& tag() const { return tag_; }

  __device__ void advance() {
    source_ += bytes_;
    opens_unit_ = false;
    if (groups_ == 0 && ++part_ < parts_) {
      groups_ = part_groups();
      bytes_ = part_parameters();
    } else if (groups_ == 0) {
      ++unit_;
      if (done()) return;
      next_position();
      return open_unit();
    } else {
      bytes_ = 0;
    }
    measure_chunk();
  }

 private:
  static constexpr int kSpans = D > kValueSpan ? D / kValueSpan : 1;

  // What part part_ consists of.
  __device__ int part_groups() const { return part_ < key_parts_ ? key_groups_ : value_groups_; }
  __device__ int part_parameters() const { return part_ < key_parts_ ? key_parameters_ : value_parameters_; }

  __device__ void next_position() {
    if (++position_.local < work_.units(position_.sequence)) return;
    position_.local = 0;
    if (++position_.head < work_.heads) return load_reference();
    position_.head = 0;
    do ++position_.sequence;
    while (work_.units(position_.sequence) == 0);
    enter_sequence();
  }

  __device__ void enter_sequence() {
    sequence_ = work_.sequence(params_, position_.sequence);
    sink_tiles_ = row_tiles(sequence_.sinks);
    load_reference();
  }

  // Of the unit at position_, or of one after it.
  __device__ void load_reference(int ahead = 0) {
    const int unit = position_.local + ahead, page = unit - sink_tiles_;
    if (unit >= work_.units(position_.sequence)) return;
    const uint64_t* list = sequence_.pages + page;
    if (page < 0) {
      list = sequence_.sinks.blocks + sequence_.sinks.begin / kTileSize + unit;
    } else if (page >= sequence_.page_count) {
      list = sequence_.window.blocks + sequence_.window.begin / kTileSize + (page - sequence_.page_count);
    }
    reference_ = __ldg(list);
  }

  __device__ void open_unit() {
    const UnitRange segment = work_.segment_range(position_.sequence, position_.head);
    const bool last = unit_ + 1 == end_ || unit_ + 1 == segment.end;
    uint32_t flags = last ? Tag::kLast : 0;
    if (unit_ + 1 == end_) flags |= Tag::kFinal;
    if (segment.begin >= first_ && segment.end <= end_) flags |= Tag::kComplete;

    const int kv_head = params_.row_blocks == 1 ? position_.head : position_.head / params_.row_blocks;
    const int page = position_.local - sink_tiles_;
    if (page >= 0 && page < sequence_.page_count) {
      const PageEntry& format = params_.formats[reference_ % kMaxPageFormats];
      source_ = reinterpret_cast<const uint8_t*>(reference_ / kMaxPageFormats * kMaxPageFormats) +
                static_cast<int64_t>(kv_head) * format.head_bytes;
      tag_.kind = format.kind | flags;
      tag_.visible = (page == 0 ? sequence_.hidden_tokens : 0) | kPageTokens << 16;
      tag_.page = page;
      key_parts_ = kSpans > 1 && tag_.has(Tag::kTokenKeys) ? kSpans : 1;
      parts_ = key_parts_ + kSpans;
      key_parameters_ = format.key_parameters;
      key_groups_ = format.key_groups;
      value_parameters_ = format.value_parameters;
      value_groups_ = format.value_groups;
      bytes_ = key_parameters_ + (tag_.has(Tag::kLabels) ? kBothLabelBytes : 0);
    } else {
      const bool sinks = page < 0;
      const int begin = sinks ? sequence_.sinks.begin : sequence_.window.begin;
      const int end = sinks ? sequence_.sinks.end : sequence_.window.end;
      const int tile = begin / kTileSize + (sinks ? position_.local : page - sequence_.page_count);
      constexpr RowTileLayout kLayout = {D};
      source_ = reinterpret_cast<const uint8_t*>(reference_) + static_cast<int64_t>(kv_head) * kLayout.bytes();
      tag_.kind = Tag::kRows | join_flags(kLayout.groups(), 1, kLayout.groups(), 1) | flags;
      tag_.visible = max(begin - tile * kTileSize, 0) | min(end - tile * kTileSize, kTileSize) << 16;
      key_parts_ = 1;
      parts_ = 2;
      bytes_ = value_parameters_ = 0;
      key_groups_ = value_groups_ = kLayout.groups();
    }
    load_reference(1);
    tag_.segment = position_.sequence * work_.heads + position_.head;
    part_ = 0;
    groups_ = key_groups_;
    opens_unit_ = true;
    measure_chunk();
  }

  // Adds groups of this part, and all parts that join.
  __device__ void measure_chunk() {
    const int count = min(groups_, kChunkGroups);
    bytes_ += count * kGroupBytes;
    groups_ -= count;
    if (groups_ > 0) return;
    while (part_ + 1 < parts_ && tag_.has(Tag::kJoin << part_)) {
      ++part_;
      bytes_ += part_parameters() + part_groups() * kGroupBytes;
    }
  }

  const AttendParams& params_;
  const Work work_;
  int unit_;
  const int first_;
  const int end_;
  Position position_ = {};
  DeviceSequence sequence_ = {};
  int sink_tiles_ = 0;
  uint64_t reference_ = 0;

  const uint8_t* source_ = nullptr;
  int bytes_ = 0;
  int groups_ = 0;  // of this part, after this chunk
  int part_ = 0;    // the last that this chunk has something of: keys, then values
  int parts_ = 0;
  int key_parts_ = 0;
  int key_parameters_ = 0, value_parameters_ = 0;  // bytes, of one part
  int key_groups_ = 0, value_groups_ = 0;
  bool opens_unit_ = false;
  Tag tag_ = {};
};

// Arrivals that complete a `full` barrier: one with the tag, and where lanes copy, one of each lane.
__device__ __forceinline__ int full_arrivals() { return kBulkCopies ? 1 : 33; }

// The whole producer warp. `range` is what the warp of ring `lane` computes, empty where there is none.
template <int D>
__device__ __forceinline__ void produce(const AttendParams& params, const Work& work, const RingPlace<D>& place,
                                        UnitRange range, int lane) {
  ChunkCursor<D> cursor(params, work, range);
  const CachePolicy policy = evict_first();
  RingPosition position;
  position.parity = 1;  // the phase before the first counts as complete: all slots are empty
  while (__any_sync(0xffffffffu, !cursor.done())) {
    const bool ready = !cursor.done() && barrier_test(place.empty(lane, position.slot), position.parity);
    if constexpr (!kBulkCopies) {
      for (uint32_t lanes = __ballot_sync(0xffffffffu, ready); lanes != 0; lanes &= lanes - 1) {
        const int ring = __ffs(lanes) - 1;
        const int slot = __shfl_sync(0xffffffffu, position.slot, ring);
        const int bytes = __shfl_sync(0xffffffffu, cursor.bytes(), ring);
        const auto source = __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(cursor.source()), ring);
        const uint32_t to = shared_address(place.slot(ring, slot));
        for (int i = lane * 16; i < bytes; i += 32 * 16) copy16(to + i, reinterpret_cast<const uint8_t*>(source) + i);
        barrier_arrive_after_copies(place.full(ring, slot));
      }
    }
    if (ready) {
      if (cursor.opens_unit()) *place.tag(lane, position.slot) = cursor.tag();
      const uint32_t full = place.full(lane, position.slot);
      if constexpr (kBulkCopies) {
        barrier_expect(full, cursor.bytes());
        bulk_copy(shared_address(place.slot(lane, position.slot)), cursor.source(), cursor.bytes(), full, policy);
      } else {
        barrier_arrive(full);
      }
      position.advance(place.slots);
      cursor.advance();
    }
  }
}

}  // namespace kvasir::cuda
