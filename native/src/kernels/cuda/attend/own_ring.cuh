// The ring of a warp that fills it itself, where registers leave no room for a producer warp beside as many consumers
// as pages divide among.
//
// Units are pages of 2-bit codes and row tiles, of 128 channels: both have two halves of equal size, keys and values.
// Each half has a slot; when the warp has read it, it asks for the same half of the next unit. What is to be known of
// units is worked out for several at once, a lane each, and noted in shared memory.
#pragma once

#include "kernels/cuda/attend/query.cuh"
#include "kernels/cuda/attend/unit_tag.h"
#include "kernels/cuda/attend/work.cuh"
#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/uniform.cuh"

namespace kvasir::cuda {

// What a warp notes of a unit: its tag, but for the page, and where it is.
struct UnitNote {
  uint64_t source;
  uint32_t kind;
  int segment;
  uint32_t visible;
  uint32_t half_bytes;
};

// What notes are made of, kept where it takes no registers: the members of Work, as bytes from the start of shared
// memory where they are pointers, and the warp's range.
struct alignas(16) NoteSource {
  uint32_t before, sequences;
  int count, heads;
  UnitRange range;
};

// How units are divided among blocks, and this block's among its warps: for the end, kept here in the meantime.
struct KnownDivision {
  Pieces blocks, warps;
};

// Addresses, as RingPlace has them. All that a warp has is in one place, its queries too, at constant distances: one
// register says where.
template <int D>
struct OwnRings {
  static_assert(D == kValueSpan && D == kPageTokens, "keys and values of a page are equally large");
  static constexpr int kSlotBytes = HeadLayout{D, 2, 2}.bytes() / 2;
  static_assert(RowTileLayout{D}.bytes() <= 2 * kSlotBytes);
  static constexpr int kSlots = 2, kNotes = 16;
  static constexpr int kQueryAt = kSlots * kSlotBytes;  // SharedQuery
  static constexpr int kNotesAt = kQueryAt + SharedQuery<D, 2>::kBytes;
  static constexpr int kSourceAt = kNotesAt + kNotes * static_cast<int>(sizeof(UnitNote));
  static constexpr int kFullAt = kSourceAt + static_cast<int>(sizeof(NoteSource));
  static constexpr int kDivisionAt = kFullAt + kSlots * 8;
  static constexpr int kEnd = kDivisionAt + static_cast<int>(sizeof(KnownDivision));
  static constexpr int kRingBytes = (kEnd + 127) / 128 * 128;  // copies had better begin at lines (line_skew)
  static_assert(kNotesAt % 16 == 0 && kSourceAt % 16 == 0 && kFullAt % 8 == 0, "read in vectors");
  uint8_t* first;
  int rings;
  int slots;  // of no matter: there are kSlots

  KVASIR_HOST_DEVICE static constexpr int bytes(int rings, int) { return rings * kRingBytes; }
  __device__ uint8_t* slot(int ring, int slot) const { return first + ring * kRingBytes + slot * kSlotBytes; }
  __device__ uint32_t full(int ring, int slot) const {
    return shared_address(first + ring * kRingBytes + kFullAt) + 8 * slot;
  }
  __device__ uint8_t* query(int ring) const { return first + ring * kRingBytes + kQueryAt; }
  __device__ KnownDivision* division(int ring) const {
    return reinterpret_cast<KnownDivision*>(first + ring * kRingBytes + kDivisionAt);
  }
  __device__ uint8_t* end() const { return first + rings * kRingBytes; }
  __device__ int stride() const { return kRingBytes / 4; }
};

// Arrivals that complete a `full` barrier: one with the bytes to come, or where lanes copy, one of each.
__device__ __forceinline__ int own_arrivals() { return kBulkCopies ? 1 : 32; }

// A unit in a warp's range, found; its address may still be on its way.
template <int D>
struct FoundUnit {
  int segment;
  UnitRange units;  // of the segment
  bool opens;       // the first of the segment in the range
  bool last;        // of the segment
  bool complete;    // the range has all of the segment
  int kv_head;
  bool is_page;  // else a row tile
  uint32_t visible;
  uint64_t reference;  // page_reference, or of a row tile the address of its block

  __device__ __forceinline__ FoundUnit(const AttendParams& params, const Work& work, int unit, UnitRange range) {
    const Position position = work.locate(unit);
    const DeviceSequence sequence = work.sequence(params, position.sequence);
    const int page = position.local - row_tiles(sequence.sinks);
    is_page = page >= 0 && page < sequence.page_count;
    if (is_page) {
      reference = __ldg(sequence.pages + page);
      visible = (page == 0 ? sequence.hidden_tokens : 0) | kPageTokens << 16;
    } else {
      const bool sinks = page < 0;
      const int begin = sinks ? sequence.sinks.begin : sequence.window.begin;
      const int end = sinks ? sequence.sinks.end : sequence.window.end;
      const int tile = begin / kTileSize + (sinks ? position.local : page - sequence.page_count);
      const uint64_t* const blocks = sinks ? sequence.sinks.blocks : sequence.window.blocks;
      reference = __ldg(blocks + tile);
      visible = max(begin - tile * kTileSize, 0) | min(end - tile * kTileSize, kTileSize) << 16;
    }
    units = work.segment_range(position.sequence, position.head);
    opens = unit == units.begin || unit == range.begin;
    last = unit + 1 == units.end;
    complete = units.begin >= range.begin && units.end <= range.end;
    segment = position.sequence * work.heads + position.head;
    kv_head = params.row_blocks == 1 ? position.head : position.head / params.row_blocks;
  }

  // final: the range's last.
  __device__ __forceinline__ UnitNote note(const AttendParams& params, bool final) const {
    UnitNote note;
    note.kind = final ? Tag::kLast | Tag::kFinal : last ? Tag::kLast : 0;
    if (complete) note.kind |= Tag::kComplete;
    if (opens) note.kind |= Tag::kOpens;
    note.segment = segment;
    note.visible = visible;
    if (is_page) {
      constexpr int kHeadBytes = 2 * OwnRings<D>::kSlotBytes;  // of all formats that come here
      note.source = reference / kMaxPageFormats * kMaxPageFormats + static_cast<int64_t>(kv_head) * kHeadBytes;
      note.half_bytes = kHeadBytes / 2;
      note.kind |= params.formats[reference % kMaxPageFormats].kind;
    } else {
      constexpr RowTileLayout kLayout = {D};
      note.source = reference + static_cast<int64_t>(kv_head) * kLayout.bytes();
      note.half_bytes = kLayout.bytes() / 2;
      note.kind |= Tag::kRows;
    }
    return note;
  }
};

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
        offset_(static_cast<uint32_t>(rings.slot(ring, 0) - rings.first)) {
    asm("" : "+r"(offset_));  // not to be worked out again for each page
    if (lane == 0) *source() = {offset_of(work.before), offset_of(work.sequences), work.count, work.heads, range};
    __syncwarp();
  }

  // Finds the first units, a lane each; past the end the last one again.
  __device__ __forceinline__ FoundUnit<D> find_first(const Work& work, UnitRange range) const {
    return FoundUnit<D>(params_, work, min(range.begin + lane_, range.end - 1), range);
  }
  // Notes them, and asks for the first one: its keys, then its values. Whatever else is loaded waits behind what has
  // been asked for. opens: as FoundUnit has it of the first one, unless its queries come otherwise.
  __device__ __forceinline__ void ask_for_keys(FoundUnit<D> found, UnitRange range, bool opens) {
    if (lane_ == 0) found.opens = opens;
    const UnitNote note = found.note(params_, range.begin + lane_ + 1 >= range.end);
    if (kBulkCopies && lane_ == 0) copy_half(note.source, note.half_bytes, 0);  // not by way of the notes
    if (lane_ < static_cast<int>(kAtOnce)) notes()[lane_] = note;
    __syncwarp();
    if (!kBulkCopies) issue(0, 0);
  }
  __device__ __forceinline__ void ask_for_values() { issue(0, 1); }

  // Waits for the next unit's keys, and stands at their beginning.
  __device__ __forceinline__ void acquire() {
    barrier_wait(full(0), unit_ % 2);
    at_ = slots();
  }
  __device__ __forceinline__ Tag tag() {
    const UnitNote& note = notes()[unit_ % kNotes];
    const Tag tag = {uniform(note.kind), uniform(note.segment), uniform(note.visible), 0};
    kind_ = tag.kind;
    return tag;
  }

  // On to the values.
  __device__ __forceinline__ void next_part(bool) {
    if ((kind_ & Tag::kFinal) == 0) {
      __syncwarp();
      issue(unit_ + 1, 0);
    }
    barrier_wait(full(1), unit_ % 2);
    at_ = slots() + OwnRings<D>::kSlotBytes;
  }
  // After them.
  __device__ __forceinline__ void release() {
    ++unit_;
    if ((kind_ & Tag::kFinal) != 0) return;
    __syncwarp();
    issue(unit_, 1);
    if ((unit_ + 1) % kAtOnce == 0) note(unit_ + 1);
  }

  // The warp's place for queries.
  __device__ __forceinline__ uint8_t* query() const { return slots() + OwnRings<D>::kQueryAt; }

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

  __device__ __forceinline__ uint8_t* slots() const { return first_ + offset_; }
  __device__ __forceinline__ UnitNote* notes() const {
    return reinterpret_cast<UnitNote*>(slots() + OwnRings<D>::kNotesAt);
  }
  __device__ __forceinline__ NoteSource* source() const {
    return reinterpret_cast<NoteSource*>(slots() + OwnRings<D>::kSourceAt);
  }
  __device__ __forceinline__ uint32_t full(int half) const {
    return shared_address(slots() + OwnRings<D>::kFullAt) + 8 * half;
  }

  __device__ __forceinline__ uint32_t offset_of(const void* pointer) const {
    return static_cast<uint32_t>(static_cast<const uint8_t*>(pointer) - first_);
  }

  // Notes kAtOnce units, `first` and on, over those before the ones that are in use. What they are made of is read as
  // volatile: the compiler would keep all that follows from it in registers from page to page.
  __device__ __forceinline__ void note(uint32_t first) {
    const volatile NoteSource& source = *this->source();
    const UnitRange range = {source.range.begin, source.range.end};
    const Work work = {reinterpret_cast<const int*>(first_ + source.before),
                       reinterpret_cast<const DeviceSequence*>(first_ + source.sequences), source.count, source.heads};
    const int unit = range.begin + static_cast<int>(first) + lane_;
    if (lane_ < static_cast<int>(kAtOnce) && unit < range.end) {
      notes()[first % kNotes + lane_] = FoundUnit<D>(params_, work, unit, range).note(params_, unit + 1 == range.end);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void issue(uint32_t unit, int half) {
    const UnitNote& note = notes()[unit % kNotes];
    const uint32_t low = uniform(static_cast<uint32_t>(note.source));
    const uint32_t high = uniform(static_cast<uint32_t>(note.source >> 32));
    const uint32_t bytes = uniform(note.half_bytes);
    const uint64_t source = static_cast<uint64_t>(high) << 32 | low;
    if constexpr (kBulkCopies) {
      if (lane_ == 0) copy_half(source, bytes, half);
    } else {
      const auto* const from = reinterpret_cast<const uint8_t*>(source + half * bytes);
      const uint32_t to = shared_address(slots() + half * OwnRings<D>::kSlotBytes);
#pragma unroll 1
      for (uint32_t i = 16 * lane_; i < bytes; i += 512) copy16(to + i, from + i);
      barrier_arrive_after_copies(full(half));
    }
  }
  // One lane.
  __device__ __forceinline__ void copy_half(uint64_t source, uint32_t bytes, int half) {
    barrier_expect(full(half), bytes);
    bulk_copy(shared_address(slots() + half * OwnRings<D>::kSlotBytes),
              reinterpret_cast<const uint8_t*>(source + half * bytes), bytes, full(half), evict_first());
  }

  const AttendParams& params_;
  uint8_t* const first_;  // of shared memory
  const int lane_;
  uint32_t offset_;    // of the ring
  uint32_t unit_ = 0;  // of the range; both barriers have its parity
  uint32_t kind_ = 0;  // of its tag
  const uint8_t* at_ = nullptr;
};

}  // namespace kvasir::cuda
