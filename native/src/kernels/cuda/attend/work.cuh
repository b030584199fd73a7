// How the work of a launch is counted and divided.
//
// A segment is one kv head (or a block of its query heads) of one sequence; its units are the row tiles of the sinks,
// the pages, and the row tiles of the window. All units of all segments stand in one line, sequence by sequence, head
// by head. The line is cut into pieces, one a block, and each of these into one a warp. Nothing but lengths
// decides the cuts, so equal input gives equal bits.
#pragma once

#include "kernels/cuda/attend/row_span.cuh"

namespace kvasir::cuda {

__device__ __forceinline__ int units_of(const DeviceSequence& sequence) {
  return row_tiles(sequence.sinks) + sequence.page_count + row_tiles(sequence.window);
}

__device__ __forceinline__ const DeviceSequence& sequence_at(const AttendParams& params, int i) {
  const DeviceSequence* sequence = params.inline_sequences[i % kInlineSequences];
  asm("" : "+l"(sequence));  // or it is loaded from one of two places by an address of either memory, which is slow
  if (params.listed_sequences != nullptr) sequence = params.listed_sequences[i];
  return *sequence;
}

// All of it by loads that do not wait for each other. The compiler would first load what units are counted by, and what
// is only kept when that is there. From where all see the same, since the grid before may still be running.
__device__ __forceinline__ DeviceSequence load_sequence(const DeviceSequence& from) {
  constexpr int kVectors = sizeof(DeviceSequence) / 16;
  union {
    uint4 vectors[kVectors];
    DeviceSequence sequence;
  };
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(vectors[i].x), "=r"(vectors[i].y), "=r"(vectors[i].z), "=r"(vectors[i].w)
                 : "l"(__cvta_generic_to_global(reinterpret_cast<const uint4*>(&from) + i)));
  }
  return sequence;
}

// a / b, b > 0, a >= 0. The compiler's own takes twice as long, and at the start of a launch everything waits for a
// chain of divisions. Without a branch: instructions come from far away then, and those that are jumped over as well.
__device__ __forceinline__ int quotient(int a, int b) {
  const float inverse = __fdividef(1.0f, static_cast<float>(b));
  int q = __float2int_rz(static_cast<float>(a) * inverse);       // off by 2^-21 of itself at most, and 1
  q += __float2int_rz(static_cast<float>(a - q * b) * inverse);  // off by 1 at most
  const int rest = a - q * b;
  if (rest < 0) --q;
  if (rest >= b) ++q;
  return q;
}

struct UnitRange {
  int begin;
  int end;
  __device__ int size() const { return end - begin; }
};

// A range cut into pieces. It consists of runs of equal size; each run is cut into `per_run` pieces of equal size, the
// first ones having one more unit where it does not divide.
class Pieces {
 public:
  __device__ Pieces(UnitRange range, int count) : Pieces(range.begin, range.size(), count) {}
  __device__ Pieces(int begin, int run, int per_run)
      : begin_(begin), run_(run), per_run_(per_run), small_(quotient(run, per_run)), larger_(run - small_ * per_run) {}

  __device__ UnitRange at(int i) const {
    const int r = i < per_run_ ? 0 : quotient(i, per_run_), j = i - r * per_run_;
    const int first = begin_ + r * run_;
    return {first + start(j), first + start(j + 1)};
  }
  // The piece that holds `unit`. No piece is empty.
  __device__ int of(int unit) const {
    const int r = unit - begin_ < run_ ? 0 : quotient(unit - begin_, run_);
    const int offset = unit - begin_ - r * run_;
    const int in_larger = larger_ * (small_ + 1);
    return r * per_run_ +
           (offset < in_larger ? quotient(offset, small_ + 1) : larger_ + quotient(offset - in_larger, small_));
  }

  // Of the first run, and how many there are of it.
  __device__ UnitRange range() const { return {begin_, begin_ + run_}; }
  __device__ int count() const { return per_run_; }

 private:
  __device__ int start(int j) const { return j * small_ + min(j, larger_); }
  int begin_, run_, per_run_, small_, larger_;
};

// Where a unit stands.
struct Position {
  int sequence;
  int head;   // kv head * row blocks + row block
  int local;  // unit of the segment
};

struct Work {
  const int* before;                // [count + 1] in shared memory: units of one head of all sequences before this one
  const DeviceSequence* sequences;  // the first params.cached of them, in shared memory
  int count;
  int heads;

  __device__ DeviceSequence sequence(const AttendParams& params, int i) const {
    return i < params.cached ? sequences[i] : sequence_at(params, i);
  }
  __device__ int total() const { return heads * before[count]; }
  __device__ int units(int sequence) const { return before[sequence + 1] - before[sequence]; }
  __device__ UnitRange segment_range(int sequence, int head) const {
    const int begin = heads * before[sequence] + head * units(sequence);
    return {begin, begin + units(sequence)};
  }
  __device__ Position locate(int unit) const {
    int low = 0, high = count;  // the last sequence that starts at or before the unit; those without units never do
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (heads * before[middle] <= unit ? low : high) = middle;
    }
    const int rest = unit - heads * before[low];
    const int head = quotient(rest, units(low));
    return {low, head, rest - head * units(low)};
  }
};

// How the line is divided among blocks. A block that ends inside a segment costs a merge through global memory, one
// that also begins inside another costs two, one after the other. Where all segments are equally long, blocks therefore
// end where segments do, if that leaves few of them idle and there is little to do: a few percent of the bandwidth cost
// more in the end.
struct BlockDivision {
  static constexpr int kMinUnits = 8;  // of a block: fewer are not worth a merge
  int blocks;                          // that have work
  Pieces pieces;

  __device__ static BlockDivision of(const Work& work, bool equal, int most, int short_units,
                                     const EvenDivision& even) {
    const int total = work.total();
    if (equal && even.runs > 0 && total > 0 && total <= short_units * most) {
      const int units = work.units(0), enough = (units + kMinUnits - 1) / kMinUnits;
      const int apart = min(even.most_apart, enough), blocks = even.runs * apart;
      if (10 * blocks >= 9 * most || apart == enough) return {blocks, Pieces(0, units * even.together, apart)};
    }
    const int blocks = max(min(most, total), 1);
    return {min(blocks, total), Pieces(0, max(total, 1), blocks)};
  }
};

// Fills before[0..count] and sequences[0..params.cached - 1], and says whether all sequences have as many units as each
// other. All threads of the block; ends with a barrier.
__device__ inline bool count_units(const AttendParams& params, int* before, DeviceSequence* sequences) {
  if (params.count <= 32) {  // one warp is enough, and one barrier
    bool equal = true;
    if (threadIdx.x < 32) {
      const int i = threadIdx.x;
      int units = 0;
      if (i < params.count) {
        const DeviceSequence sequence = load_sequence(sequence_at(params, i));
        units = units_of(sequence);
        if (i < params.cached) sequences[i] = sequence;
      }
      if (params.count > 1) {
        const int first = __shfl_sync(0xffffffffu, units, 0);
        equal = i >= params.count || units == first;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          const int other = __shfl_up_sync(0xffffffffu, units, step);
          if (i >= step) units += other;
        }
      }
      if (i < params.count) before[i + 1] = units;
      if (i == 0) before[0] = 0;
    }
    return __syncthreads_and(equal) != 0;
  }
  for (int i = threadIdx.x; i < params.count; i += blockDim.x) {
    const DeviceSequence sequence = load_sequence(sequence_at(params, i));
    before[i + 1] = units_of(sequence);
    if (i < params.cached) sequences[i] = sequence;
  }
  if (threadIdx.x == 0) before[0] = 0;
  __syncthreads();
  bool equal = true;
  for (int i = threadIdx.x; i < params.count; i += blockDim.x) equal = equal && before[i + 1] == before[1];
  equal = __syncthreads_and(equal);
  if (threadIdx.x < 32) {
    int carry = 0;
    for (int base = 1; base <= params.count; base += 32) {
      const int i = base + static_cast<int>(threadIdx.x);
      int sum = i <= params.count ? before[i] : 0;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, step);
        if (static_cast<int>(threadIdx.x) >= step) sum += other;
      }
      if (i <= params.count) before[i] = carry + sum;
      carry += __shfl_sync(0xffffffffu, sum, 31);
    }
  }
  __syncthreads();
  return equal;
}

}  // namespace kvasir::cuda
