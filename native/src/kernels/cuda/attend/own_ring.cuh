// The ring of a warp that fills it itself, where registers leave no room for a producer warp beside as many consumers
// as pages divide among.
//
// Units are pages of 2-bit codes and row tiles, of 128 channels: both have two halves of equal size, keys and values.
// Each half has a slot; when the warp has read it, it asks for the same half of the next unit. What is to be known of
// units is worked out for several at once, a lane each, and noted in shared memory.
#pragma once

#include "kernels/cuda/attend/unit_tag.h"
#include "kernels/cuda/attend/work.cuh"
#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/uniform.cuh"

namespace kvasir::cuda {

// What a warp notes of a unit.
struct UnitNote {
  Tag tag;
  uint64_t source;
  uint32_t half_bytes;
  uint32_t unused;
};
static_assert(sizeof(UnitNote) == 32, "two vectors");

// What notes are made of, kept where it takes no registers: the members of Work, as bytes from the start of shared
// memory where they are pointers, and the warp's range.
struct alignas(16) NoteSource {
  uint32_t before, sequences;
  int count, heads;
  UnitRange range;
};

// Addresses, as RingPlace has them.
template <int D>
struct OwnRings {
  static_assert(D == kValueSpan && D == kPageTokens, "keys and values of a page are equally large");
  static constexpr int kSlotBytes = HeadLayout{D, 2, 2}.bytes() / 2;
  static_assert(RowTileLayout{D}.bytes() <= 2 * kSlotBytes);
  static constexpr int kSlots = 2, kNotes = 16;
  static constexpr int kRingBytes =
      kSlots * (kSlotBytes + 8) + kNotes * static_cast<int>(sizeof(UnitNote)) + static_cast<int>(sizeof(NoteSource));
  static_assert(kRingBytes % 16 == 0, "what follows is read in vectors");
  uint8_t* first;
  int rings;
  int slots;  // of no matter: there are kSlots

  KVASIR_HOST_DEVICE static constexpr int bytes(int rings, int) { return rings * kRingBytes; }
  __device__ uint8_t* slot(int ring, int slot) const { return first + (ring * kSlots + slot) * kSlotBytes; }
  __device__ UnitNote* notes(int ring) const {
    return reinterpret_cast<UnitNote*>(first + rings * kSlots * kSlotBytes) + ring * kNotes;
  }
  __device__ NoteSource* note_source(int ring) const { return reinterpret_cast<NoteSource*>(notes(rings)) + ring; }
  __device__ uint32_t full(int ring, int slot) const {
    return shared_address(note_source(rings)) + 8 * (ring * kSlots + slot);
  }
  __device__ uint8_t* end() const { return first + rings * kRingBytes; }
  __device__ int stride() const { return kSlots * kSlotBytes / 4; }
};

// Arrivals that complete a `full` barrier: one with the bytes to come, or where lanes copy, one of each.
__device__ __forceinline__ int own_arrivals() { return kBulkCopies ? 1 : 32; }

// Of a unit in a warp's range.
template <int D>
__device__ __forceinline__ UnitNote note_of(const AttendParams& params, const Work& work, int unit, UnitRange range) {
  const Position position = work.locate(unit);
  const DeviceSequence sequence = work.sequence(params, position.sequence);
  const UnitRange segment = work.segment_range(position.sequence, position.head);
  const int kv_head = params.row_blocks == 1 ? position.head : position.head / params.row_blocks;
  const int page = position.local - row_tiles(sequence.sinks);
  UnitNote note;
  note.tag.kind = unit + 1 == range.end ? Tag::kLast | Tag::kFinal : unit + 1 == segment.end ? Tag::kLast : 0;
  if (segment.begin >= range.begin && segment.end <= range.end) note.tag.kind |= Tag::kComplete;
  note.tag.segment = position.sequence * work.heads + position.head;
  note.tag.page = page;
  if (page >= 0 && page < sequence.page_count) {
    const uint64_t reference = __ldg(sequence.pages + page);
    const PageEntry& format = params.formats[reference % kMaxPageFormats];
    note.source = reference / kMaxPageFormats * kMaxPageFormats + static_cast<int64_t>(kv_head) * format.head_bytes;
    note.half_bytes = format.head_bytes / 2;
    note.tag.kind |= format.kind;
    note.tag.visible = (page == 0 ? sequence.hidden_tokens : 0) | kPageTokens << 16;
  } else {
    constexpr RowTileLayout kLayout = {D};
    const bool sinks = page < 0;
    const int begin = sinks ? sequence.sinks.begin : sequence.window.begin;
    const int end = sinks ? sequence.sinks.end : sequence.window.end;
    const int tile = begin / kTileSize + (sinks ? position.local : page - sequence.page_count);
    const uint64_t* const blocks = sinks ? sequence.sinks.blocks : sequence.window.blocks;
    note.source = __ldg(blocks + tile) + static_cast<int64_t>(kv_head) * kLayout.bytes();
    note.half_bytes = kLayout.bytes() / 2;
    note.tag.kind |= Tag::kRows;
    note.tag.visible = max(begin - tile * kTileSize, 0) | min(end - tile * kTileSize, kTileSize) << 16;
  }
  return note;
}

// Goes through the halves of units in order, as Reader goes through parts.
template <int D>
class OwnReader {
 public:
  static constexpr int kHeadDim = D;

  // The ring's barriers have been initialised. `work` is in shared memory.
  __device__ __forceinline__ OwnReader(const AttendParams& params, const OwnRings<D>& rings, const Work& work,
                                       UnitRange range, int ring, int lane)
      : params_(params),
        first_(rings.first),
        lane_(lane),
        slots_(rings.slot(ring, 0)),
        notes_(rings.notes(ring)),
        source_(rings.note_source(ring)),
        full_(rings.full(ring, 0)) {
    if (lane == 0) *source_ = {offset_of(work.before), offset_of(work.sequences), work.count, work.heads, range};
    __syncwarp();
  }

  // Asks for the first unit: its keys, then its values. Whatever else is loaded waits behind what has been asked for.
  __device__ __forceinline__ void ask_for_keys() {
    note(0);
    issue(0, 0);
  }
  __device__ __forceinline__ void ask_for_values() { issue(0, 1); }

  // Waits for the next unit's keys, and stands at their beginning.
  __device__ __forceinline__ void acquire() {
    barrier_wait(full_, unit_ % 2);
    at_ = slots_;
  }
  __device__ __forceinline__ Tag tag() {
    Tag tag = notes_[unit_ % kNotes].tag;
    tag.kind = uniform(tag.kind);
    tag.segment = uniform(tag.segment);
    tag.visible = uniform(tag.visible);
    kind_ = tag.kind;
    return tag;
  }

  // On to the values.
  __device__ __forceinline__ void next_part(bool) {
    if ((kind_ & Tag::kFinal) == 0) {
      __syncwarp();
      issue(unit_ + 1, 0);
    }
    barrier_wait(full_ + 8, unit_ % 2);
    at_ = slots_ + OwnRings<D>::kSlotBytes;
  }
  // After them.
  __device__ __forceinline__ void release() {
    ++unit_;
    if ((kind_ & Tag::kFinal) != 0) return;
    __syncwarp();
    issue(unit_, 1);
    if ((unit_ + 1) % kAtOnce == 0) note(unit_ + 1);
  }

  // As Reader has them.
  __device__ __forceinline__ uint4 parameters(int index) const {
    return *reinterpret_cast<const uint4*>(at_ + 128 * index + lane_ / 4 * 16);
  }
  __device__ __forceinline__ void skip_parameters(int bytes) { at_ += bytes; }
  __device__ __forceinline__ uint4 group(int index, int) const {
    return *reinterpret_cast<const uint4*>(at_ + index * kGroupBytes + lane_ * 16);
  }
  __device__ __forceinline__ const uint8_t* groups(int index, int, int) const {
    return at_ + index * kGroupBytes + lane_ * 16;
  }

 private:
  static constexpr uint32_t kNotes = OwnRings<D>::kNotes, kAtOnce = kNotes / 2;

  __device__ __forceinline__ uint32_t offset_of(const void* pointer) const {
    return static_cast<uint32_t>(static_cast<const uint8_t*>(pointer) - first_);
  }

  // Notes kAtOnce units, `first` and on, over those before the ones that are in use. What they are made of is read as
  // volatile: the compiler would keep all that follows from it in registers from page to page.
  __device__ __forceinline__ void note(uint32_t first) {
    const volatile NoteSource& source = *source_;
    const UnitRange range = {source.range.begin, source.range.end};
    const Work work = {reinterpret_cast<const int*>(first_ + source.before),
                       reinterpret_cast<const DeviceSequence*>(first_ + source.sequences), source.count, source.heads};
    const int unit = range.begin + static_cast<int>(first) + lane_;
    if (lane_ < static_cast<int>(kAtOnce) && unit < range.end) {
      notes_[first % kNotes + lane_] = note_of<D>(params_, work, unit, range);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void issue(uint32_t unit, int half) {
    const UnitNote& note = notes_[unit % kNotes];
    const uint32_t low = uniform(static_cast<uint32_t>(note.source));
    const uint32_t high = uniform(static_cast<uint32_t>(note.source >> 32));
    const uint32_t bytes = uniform(note.half_bytes);
    const auto* const from = reinterpret_cast<const uint8_t*>((static_cast<uint64_t>(high) << 32 | low) + half * bytes);
    const uint32_t to = shared_address(slots_ + half * OwnRings<D>::kSlotBytes), full = full_ + 8 * half;
    if constexpr (kBulkCopies) {
      if (lane_ == 0) {
        barrier_expect(full, bytes);
        bulk_copy(to, from, bytes, full, evict_first());
      }
    } else {
#pragma unroll 1
      for (uint32_t i = 16 * lane_; i < bytes; i += 512) copy16(to + i, from + i);
      barrier_arrive_after_copies(full);
    }
  }

  const AttendParams& params_;
  uint8_t* const first_;  // of shared memory
  const int lane_;
  uint8_t* const slots_;
  UnitNote* const notes_;
  NoteSource* const source_;
  const uint32_t full_;
  uint32_t unit_ = 0;  // of the range; both barriers have its parity
  uint32_t kind_ = 0;  // of its tag
  const uint8_t* at_ = nullptr;
};

}  // namespace kvasir::cuda
