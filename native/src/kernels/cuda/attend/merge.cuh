// The end of a launch: the warps of a block merge what they left, then blocks that share a segment do.
//
// What there is to merge is known before the last page is read; the producer warp, which is done by then, or else the
// first warp without more pages, works it out (plan_merges), because divisions take longer than merging. The block that
// is the last to deliver its share of a segment merges them all, in the order of the units whoever it is.
#pragma once

#include <type_traits>

#include "kernels/cuda/attend/partial.cuh"
#include "kernels/cuda/attend/ring.cuh"
#include "kernels/cuda/primitives/arrivals.cuh"
#include "kernels/cuda/primitives/numbers.cuh"

namespace kvasir::cuda {

// Where the warps of a block leave partial states. Where a warp's piece begins inside a segment that ends before the
// piece does, that segment's state is at front(warp), in shared memory or, kDistant, in the workspace; the state of a
// segment that the piece ends inside is in the warp's ring, which is free by then.
template <int D, int kTiles, class Rings, bool kDistant>
struct PartialPlace {
  Rings rings;
  float* fronts;  // of this block; kDistant: all that the workspace has for partial states

  __device__ float* front(int warp) const {
    if constexpr (kDistant) {  // after the shares of all blocks; worked out when it is needed, to keep no registers
      const int before = 2 * gridDim.x + blockIdx.x * rings.rings + warp;
      return fronts + before * static_cast<int64_t>(kPartialFloats<D, kTiles>);
    } else {
      return fronts + warp * kPartialFloats<D, kTiles>;
    }
  }
  __device__ float* back(int warp) const { return reinterpret_cast<float*>(rings.slot(warp, 0)); }
  __device__ int back_stride() const { return rings.stride(); }
};

// One segment that no single warp had all of.
struct MergeJob {
  SegmentHeads heads;
  int segment;
  int first_warp;
  int last_warp;
  bool ends_inside;  // the last warp's piece goes on after the segment
  int share;         // which of the block's two shares; -1 where no other block has one
  int first_block;
  int first_share;  // of the first block
  int blocks;
};
constexpr int kMaxMergeJobs = 17;  // of 16 warps: one each, and the one that the block begins in

// In shared memory.
struct MergeList {
  int finished;  // warps that have no more pages
  MergeJob jobs[kMaxMergeJobs];
  int count;
  int shared;          // of them
  uint32_t before[2];  // blocks that delivered their share before this one, by share
};

// A whole warp. A segment needs merging if the block begins inside it, or if a warp ends inside it: lane 0
// looks at the block's first unit, lane w + 1 at the last unit of warp w.
template <int kTiles>
__device__ inline void plan_merges(const AttendParams& params, const Work& work, const Pieces& blocks,
                                   const Pieces& warps, int warp_count, int lane, MergeList* list) {
  const UnitRange ours = blocks.at(blockIdx.x);
  const bool looks = lane <= warp_count;
  const int unit = lane == 0 || !looks ? ours.begin : warps.at(lane - 1).end - 1;
  const Position position = work.locate(unit);
  const int segment = position.sequence * work.heads + position.head;
  const UnitRange units = work.segment_range(position.sequence, position.head);
  const int first = warps.of(max(units.begin, ours.begin));
  const int last = warps.of(min(units.end, ours.end) - 1);
  const UnitRange last_piece = warps.at(last);
  const bool complete = units.begin >= last_piece.begin && units.end <= last_piece.end;
  bool wanted = looks && !complete && (lane > 0 || units.begin < ours.begin);
  const int previous = __shfl_up_sync(0xffffffffu, segment, 1);
  const bool previous_wanted = __shfl_up_sync(0xffffffffu, wanted, 1);
  if (lane > 0 && previous == segment && (lane > 1 || previous_wanted)) wanted = false;  // seen by an earlier lane

  const bool shared = units.begin < ours.begin || units.end > ours.end;
  const uint32_t all = __ballot_sync(0xffffffffu, wanted);
  const uint32_t all_shared = __ballot_sync(0xffffffffu, wanted && shared);
  if (wanted) {
    MergeJob& job = list->jobs[__popc(all & ((1u << lane) - 1))];
    job.heads = SegmentHeads::of<kTiles>(params, segment);
    job.segment = segment;
    job.first_warp = first;
    job.last_warp = last;
    job.ends_inside = units.end < last_piece.end;
    job.share = !shared ? -1 : units.begin > ours.begin ? 1 : 0;
    job.first_block = blocks.of(units.begin);
    job.first_share = units.begin > blocks.at(job.first_block).begin ? 1 : 0;
    job.blocks = blocks.of(units.end - 1) - job.first_block + 1;
  }
  if (lane == 0) {
    list->count = __popc(all);
    list->shared = __popc(all_shared);
  }
}

// kCount floats from or to memory, by as few instructions as their number allows.
template <int kCount>
struct Floats {
  using Vector = std::conditional_t<kCount % 4 == 0, float4, std::conditional_t<kCount % 2 == 0, float2, float>>;
  alignas(Vector) float at[kCount];

  __device__ __forceinline__ void load(const float* from) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vectors(at)[i] = vectors(from)[i];
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) at[i] = 0.0f;
  }
  __device__ __forceinline__ void store(float* to) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vectors(to)[i] = vectors(at)[i];
  }

 private:
  static constexpr int kVectors = static_cast<int>(kCount * sizeof(float) / sizeof(Vector));
  __device__ static Vector* vectors(float* floats) { return reinterpret_cast<Vector*>(floats); }
  __device__ static const Vector* vectors(const float* floats) { return reinterpret_cast<const Vector*>(floats); }
};

// Merges partial states partial(0) .. partial(parts - 1) of a head into outputs, or where `merged` is given into
// another state: the 32 * kWidth channels from `channel` on, a warp, of which a lane has kWidth that are next to each
// other. For the weights each lane looks at one part, 32 at a time.
//
// This runs once or twice a launch, when instructions come from far away and every dependent load is waited for: loads
// are issued together, kAtOnce parts of them. kStride: floats from each part to the next, but for the first, where that
// is constant: then addresses need no instructions.
template <int D, int kWidth, int kAtOnce, int kStride = 0, class PartialAt>
__device__ __forceinline__ void merge_partials(const AttendParams& params, int64_t row, int head, int first_channel,
                                               int parts, PartialAt partial, float* merged) {
  constexpr int kHead = kPartialHead<D>;
  const int lane = threadIdx.x % 32, channel = first_channel + kWidth * lane;
  float highest = kNothing, sum = 0.0f;
  Floats<kWidth> output;
  output.clear();
#pragma unroll 1
  for (int base = 0; base < parts; base += 32) {
    float next = highest, weight = 0.0f;
#pragma unroll 1
    for (int first = 0; first < 32 && base + first < parts; first += kAtOnce) {
      // Maximum and sum of the lane's part. In the loop: before it they would be waited for before the rest is asked
      // for.
      float2 state = {kNothing, 0.0f};
      if (first == 0 && base + lane < parts) {
        state = *reinterpret_cast<const float2*>(partial(base + lane) + head * kHead + D);
      }
      Floats<kWidth> values[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (kStride == 0 || k == 0) {  // past the end the last one again: its weight is 0
          values[k].load(partial(min(base + first + k, parts - 1)) + head * kHead + channel);
        } else if (base + first + k < parts) {
          values[k].load(partial(base + first + 1) + (k - 1) * kStride + head * kHead + channel);
        } else {
          values[k].clear();
        }
      }
      if (first == 0) {
        next = fmaxf(highest, highest_of_warp(state.x));
        weight = weight_of(state.x, next);
        const float keep = weight_of(highest, next);
        sum = fmaf(sum, keep, sum_over_warp(weight * state.y));
#pragma unroll
        for (int w = 0; w < kWidth; ++w) output.at[w] *= keep;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const float factor = __shfl_sync(0xffffffffu, weight, first + k);
#pragma unroll
        for (int w = 0; w < kWidth; ++w) output.at[w] = fmaf(factor, values[k].at[w], output.at[w]);
      }
    }
    highest = next;
  }
  if (merged == nullptr) {
    const RowEnd end = end_row(params.ends, params.kv_heads * params.group, row, highest, sum, channel == 0);
    const float inverse = __fdividef(end.gain, end.sum);
#pragma unroll
    for (int w = 0; w < kWidth; ++w) {
      store_number(params.outputs, params.type, row * D + channel + w, output.at[w] * inverse);
    }
  } else {
    output.store(merged + head * kHead + channel);
    if (channel == 0) *reinterpret_cast<float2*>(merged + head * kHead + D) = {highest, sum};
  }
}

// What has to be done before partial states of warps are merged: nothing.
struct NothingLeft {
  __device__ __forceinline__ void prepare(const MergeList&) const {}
  __device__ __forceinline__ int parts(const MergeJob&) const { return 0; }
  __device__ __forceinline__ const float* part(int) const { return nullptr; }
};

template <int D, int kTiles, class Rings, bool kDistant>
class BlockMerge {
 public:
  __device__ BlockMerge(const AttendParams& params, const PartialPlace<D, kTiles, Rings, kDistant>& place,
                        MergeList* list)
      : params_(params), place_(place), list_(*list) {}

  // All threads, after a barrier. Warps take heads of all segments in turn: few of them have many. Of eight heads they
  // take the channels in two parts, and twice the channels of other blocks' shares, so that all warps have one each.
  // left: adds partial states of its own to those of a job's warps, left.part(first_warp), ....
  template <class Left>
  __device__ __forceinline__ void run(const Left& left) {
    left.prepare(list_);
    for_each_task(kTiles,
                  [&](const MergeJob& job, int head, int part) { merge_warps(job, head, part * (D / kTiles), left); });
    if (list_.shared == 0) return;
    deliver();
    for_each_task(D / (32 * kTiles), [&](const MergeJob& job, int head, int part) {
      if (arrived_last(job)) merge_blocks(job, head, 32 * kTiles * part);
    });
    const int j = threadIdx.x;
    if (j < list_.count && arrived_last(list_.jobs[j])) {
      params_.arrivals[list_.jobs[j].segment] = 0;  // for the next launch
    }
  }

 private:
  static constexpr int kFloats = kPartialFloats<D, kTiles>, kHeads = 4 * kTiles;

  // task(job, head, part) for each of a head's parts.
  template <class Task>
  __device__ __forceinline__ void for_each_task(int parts, const Task& task) const {
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < list_.count * kHeads * parts; i += blockDim.x / 32) {
      const MergeJob& job = list_.jobs[i / (kHeads * parts)];
      const int head = i / parts % kHeads;
      if (head < job.heads.count) task(job, head, i % parts);
    }
  }

  __device__ __forceinline__ bool arrived_last(const MergeJob& job) const {
    return job.share >= 0 && list_.before[job.share] == static_cast<uint32_t>(job.blocks) - 1;
  }

  template <class Left>
  __device__ __forceinline__ void merge_warps(const MergeJob& job, int head, int channel, const Left& left) {
    const float* const first = place_.back(job.first_warp);
    const int last = job.last_warp - job.first_warp;
    const int stride = place_.back_stride();
    const auto merge = [&](const auto& partial) {
      merge_partials<D, D / (32 * kTiles), 8>(
          params_, job.heads.first + head, head, channel, last + 1 + left.parts(job),
          [&](int p) -> const float* { return p > last ? left.part(job.first_warp + p - last - 1) : partial(p); },
          job.share < 0 ? nullptr : share(blockIdx.x, job.share));
    };
    if constexpr (kDistant) {  // code of its own where all are in shared memory
      if (!job.ends_inside) return merge([&](int p) { return first + p * stride; });
      const float* const end = place_.front(job.last_warp);
      merge([&](int p) { return p == last ? end : first + p * stride; });
    } else {
      const float* const end = job.ends_inside ? place_.front(job.last_warp) : place_.back(job.last_warp);
      const int last_offset = static_cast<int>(end - first);
      merge([&](int p) { return first + (p == last ? last_offset : p * stride); });
    }
  }

  __device__ __forceinline__ void merge_blocks(const MergeJob& job, int head, int channel) {
    const float* const first = share(job.first_block, 0);
    const int start = job.first_share * kFloats;
    merge_partials<D, kTiles, 16, 2 * kFloats>(
        params_, job.heads.first + head, head, channel, job.blocks,
        [&](int p) { return first + (p == 0 ? start : p * 2 * kFloats); }, nullptr);
  }

  // Our shares are written: tells the other blocks, and learns which of them did before.
  __device__ __forceinline__ void deliver() {
    __syncthreads();
    const int j = threadIdx.x;
    if (j < list_.count && list_.jobs[j].share >= 0) {
      list_.before[list_.jobs[j].share] = count_arrival(params_.arrivals + list_.jobs[j].segment);
    }
    __syncthreads();
  }

  // A block has at most two shares: 0 of the segment that it starts in, 1 of one that starts in it and goes on.
  __device__ float* share(int block, int which) const {
    return params_.block_partials + static_cast<int64_t>(2 * block + which) * kFloats;
  }

  const AttendParams& params_;
  const PartialPlace<D, kTiles, Rings, kDistant> place_;
  MergeList& list_;
};

}  // namespace kvasir::cuda
