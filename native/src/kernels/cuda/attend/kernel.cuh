// Attention in one launch: scores, softmax and outputs of one query token a sequence, on packed pages.
//
// A block is one producer warp and several consumer warps. Each consumer owns a ring that the producer fills, and
// computes a contiguous piece of the line of units (work.cuh) on its own; then the block merges, then the blocks.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/attend/merge.cuh"
#include "kernels/cuda/attend/producer.cuh"
#include "kernels/cuda/attend/scores_and_outputs.cuh"

namespace kvasir::cuda {

// Registers are dealt out to four schedulers alike: with the producer there are 16 warps of 128 registers a lane, or 12
// of 168 where wider heads or more query heads need them.
template <int D, int kTiles>
constexpr int kMaxConsumers = (D * kTiles <= 128) ? 15 : 11;

template <int D, int kTiles>
__device__ __forceinline__ void write_outputs(const AttendParams& params, int segment, int lane,
                                              const SoftmaxState<D, kTiles>& state) {
  const SegmentHeads heads = SegmentHeads::of<kTiles>(params, segment);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int head = 4 * n + lane % 4;
    if (head >= heads.count) continue;
    const RowEnd end = end_row(params.ends, params.kv_heads * params.group, heads.first + head, state.max[n],
                               state.sum[n], lane / 4 == 0);
    const float inverse = end.gain / end.sum;
    const int64_t first = (heads.first + head) * D + lane / 4;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      store_number(params.outputs, params.type, first + 8 * i, state.output[n][i] * inverse);
    }
  }
}

// One consumer warp. Writes the outputs of segments that it has all of, and partial states of the others.
template <bool kAllKinds, int D, int kTiles>
__device__ __forceinline__ void consume(const AttendParams& params, const Work& work, const RingPlace<D>& rings,
                                        const PartialPlace<D, kTiles>& place, LabelScratch<kTiles>* scratch,
                                        UnitRange range, int warp, int lane) {
  Reader<D> reader(rings, warp, lane);
  const LabelPlace<D, kTiles> vectors = {scratch + (params.labels ? warp : 0)};
  Query<D, kTiles> query;
  SoftmaxState<D, kTiles> state;
  const Position start = work.locate(range.begin);
  int wanted = start.sequence * work.heads + start.head;  // loaded before its first page arrives
  int segment = -1;
  while (true) {
    if (wanted != segment) {
      load_query(params, wanted, lane, query);
      state.clear();
      if (kAllKinds && params.labels) vectors.begin(params, work, wanted, lane, query);
      segment = wanted;
    }
    reader.acquire();
    const Tag tag = reader.tag();
    if (tag.segment != segment) {
      wanted = tag.segment;
      continue;
    }
    if (tag.has(Tag::kRows)) {
      row_step<kAllKinds>(params, reader, tag, lane, query, state);
    } else {
      page_step<kAllKinds>(params, reader, tag, lane, query, vectors, state);
    }
    if (!tag.has(Tag::kLast)) continue;
    state.complete();
    if (kAllKinds && params.labels) vectors.add_to_outputs(lane, state);
    if (tag.has(Tag::kComplete)) {
      write_outputs(params, segment, lane, state);
    } else {
      write_partial(state, lane, tag.has(Tag::kFinal) ? place.back(warp) : place.front(warp));
    }
    if (tag.has(Tag::kFinal)) break;
  }
}

// What comes after the rings in shared memory: partial states (PartialPlace::front), then this.
template <int D, int kTiles>
struct SharedTail {
  LabelScratch<kTiles>* vectors;  // [consumers], where there are vectors
  DeviceSequence* sequences;      // [cached]
  MergeList* merges;
  int* before;  // [sequences + 1]

  static int bytes(int consumers, int cached, const AttendShape& shape) {
    return 4 * kPartialFloats<D, kTiles> * consumers +
           static_cast<int>(sizeof(LabelScratch<kTiles>)) * (shape.labels ? consumers : 0) +
           static_cast<int>(sizeof(DeviceSequence)) * cached + static_cast<int>(sizeof(MergeList)) +
           4 * (shape.sequences + 1);
  }
  __device__ SharedTail(uint8_t* first, int consumers, int cached, bool has_labels)
      : vectors(reinterpret_cast<LabelScratch<kTiles>*>(first + 4 * kPartialFloats<D, kTiles> * consumers)),
        sequences(reinterpret_cast<DeviceSequence*>(vectors + (has_labels ? consumers : 0))),
        merges(reinterpret_cast<MergeList*>(sequences + cached)),
        before(reinterpret_cast<int*>(merges + 1)) {}
};

template <int D, int kTiles, bool kAllKinds>
__global__ void __launch_bounds__(32 * (kMaxConsumers<D, kTiles> + 1), 1)
    attend_kernel(const __grid_constant__ AttendParams params) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int consumers = params.consumers;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const RingPlace<D> place = {shared, consumers, params.slots};
  const SharedTail<D, kTiles> tail(place.end(), consumers, params.cached, params.labels);
  const PartialPlace<D, kTiles> partials = {place, reinterpret_cast<float*>(place.end())};
  if (warp < consumers && lane < params.slots) {  // each warp its own: initialising is serial inside a warp
    barrier_init(place.full(warp, lane), full_arrivals());
    barrier_init(place.empty(warp, lane), 1);
  }
  fence_barrier_inits();
  let_next_grid_start();
  wait_for_grids_before();  // nothing before this reads or writes global memory
  const bool equal = count_units(params, tail.before, tail.sequences);

  const Work work = {tail.before, tail.sequences, params.count, params.kv_heads * params.row_blocks};
  const int64_t row = static_cast<int64_t>(params.kv_heads) * params.group * D;
  for (int s = blockIdx.x; s < params.count; s += gridDim.x) {  // sequences without tokens
    if (work.units(s) > 0) continue;
    for (int i = threadIdx.x; i < row; i += blockDim.x) {
      store_number(params.outputs, params.type, s * row + i, 0.0f);
      if (i % D == 0) end_row(params.ends, params.kv_heads * params.group, (s * row + i) / D, kHidden, 0.0f, true);
    }
  }
  const BlockDivision division = BlockDivision::of(work, equal, gridDim.x, params.short_units);
  if (static_cast<int>(blockIdx.x) >= division.blocks) return;
  const UnitRange ours = division.pieces.at(blockIdx.x);
  const int warps = min(consumers, ours.size());
  const Pieces shares(ours, warps);

  if (warp == consumers) {
    produce(params, work, place, lane < warps ? shares.at(lane) : UnitRange{0, 0}, lane);
    plan_merges<kTiles>(params, work, division.pieces, shares, warps, lane, tail.merges);
  } else if (warp < warps) {
    consume<kAllKinds>(params, work, place, partials, tail.vectors, shares.at(warp), warp, lane);
  }
  __syncthreads();
  BlockMerge<D, kTiles>(params, partials, tail.merges).run();
}

}  // namespace kvasir::cuda
