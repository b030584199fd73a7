// Attention in one launch: scores, softmax and outputs of one query token a sequence, on packed pages.
//
// A block is one producer warp and several consumer warps. Each consumer owns a ring that the producer fills, or fills
// it itself (own_ring.cuh), and computes a contiguous piece of the line of units (work.cuh) on its own; then the block
// merges, then the blocks.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/attend/label_counts.cuh"
#include "kernels/cuda/attend/merge.cuh"
#include "kernels/cuda/attend/own_ring.cuh"
#include "kernels/cuda/attend/producer.cuh"
#include "kernels/cuda/attend/scores_and_outputs.cuh"
#include "kernels/cuda/attend/two_bits.cuh"

namespace kvasir::cuda {

// Where weights are summed by label: other kernels have no labels, or compare them.
template <PageKinds kPages, int kTiles>
constexpr bool kCountsNear = kTiles == 1 && kPages == PageKinds::kLabelledTwoBits;
template <PageKinds kPages, int kTiles>
constexpr bool kCountsFar = kTiles == 1 && kPages == PageKinds::kFarTwoBits;
// Where queries are in shared memory, for want of registers.
template <PageKinds kPages, int kTiles>
constexpr bool kSharesQueries = (kPages == PageKinds::kTwoBits || kPages == PageKinds::kLabelledTwoBits) && kTiles > 1;

// Where shared memory has no room for the partial states of as many warps as registers allow.
template <PageKinds kPages, int D, int kTiles>
constexpr bool kDistantFronts = kTiles > 1 && D* kTiles > 128 && kPages == PageKinds::kTwoBits;

// Where warps fill their rings themselves: with eight query heads a warp has work for so long that 64 pages on 15 of
// them leave four busy with a fifth one, and there are no registers for a producer beside 16.
template <PageKinds kPages, int D, int kTiles>
constexpr bool kOwnRings = (kPages == PageKinds::kTwoBits && D == kValueSpan && kTiles > 1);
template <PageKinds kPages, int D, int kTiles>
using RingsOf = std::conditional_t<kOwnRings<kPages, D, kTiles>, OwnRings<kValueSpan>, RingPlace<D>>;

// What kernels need of a block.
struct BlockNeeds {
  int consumers;  // at most
  bool producer;  // beside them
  int (*ring_bytes)(int rings, int slots);
  int warp_bytes;  // of shared memory, for each consumer, beside rings, partial states and LabelScratch
  bool distant_fronts;
};
// Registers are dealt out to four schedulers alike: with the producer there are 16 warps of 128 registers a lane, or 12
// of 168 where wider heads or more query heads need them.
template <PageKinds kPages, int D, int kTiles>
constexpr bool kNarrow = (D * kTiles <= 128 && !kCountsFar<kPages, kTiles>) || kDistantFronts<kPages, D, kTiles>;
template <PageKinds kPages, int D, int kTiles>
constexpr BlockNeeds kBlockNeeds = {kOwnRings<kPages, D, kTiles> ? 16
                                    : kNarrow<kPages, D, kTiles> ? 15
                                                                 : 11,
                                    !kOwnRings<kPages, D, kTiles>, RingsOf<kPages, D, kTiles>::bytes,
                                    kCountsFar<kPages, kTiles>       ? static_cast<int>(sizeof(FarCounts))
                                    : kOwnRings<kPages, D, kTiles>   ? 0
                                    : kSharesQueries<kPages, kTiles> ? SharedQuery<D, kTiles>::kBytes
                                                                     : 0,
                                    kDistantFronts<kPages, D, kTiles>};

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

// The start of a warp that fills its ring itself: asks for its first unit, and brings its queries.
//
// Most warps of a block begin in the same segment. These load its queries together, a head or two each, into the place
// of the first of them, which has no other segment: if each loaded all of them, page tables would wait behind. Other
// warps load queries for themselves when their page is there (Tag::kOpens); here they only bring them near, because
// what is loaded behind pages comes late.
template <int D, int kTiles>
__device__ __forceinline__ void begin_own_ring(const AttendParams& params, const Work& work, const OwnRings<D>& rings,
                                               OwnReader<D>& reader, const Pieces& shares, UnitRange range, int warp,
                                               int lane, SharedQuery<D, kTiles>& query) {
  constexpr int kHeads = 4 * kTiles;
  const FoundUnit<D> found = reader.find_first(work, range);
  const int segment = uniform(found.segment);
  const UnitRange units = {uniform(found.units.begin), uniform(found.units.end)};
  const UnitRange ours = {uniform(shares.range().begin), uniform(shares.range().end)};
  // Lanes are not to part here for all that the compiler knows: it would reckon with it in every page.
  const int sharers = uniform(units.end >= ours.end ? shares.count() : shares.of(units.end - 1) + 1);
  const bool together = units.begin <= ours.begin && sharers >= kHeads / 2;
  const int second = warp + sharers;  // head; the first one is `warp`
  QueryRow<D> row, second_row;
  if (!together) {
    touch_queries<D>(params, segment, lane);
  } else {
    if (warp < kHeads) row.load(params, segment, warp, lane);
    if (second < kHeads) second_row.load(params, segment, second, lane);
  }
  reader.ask_for_keys(found, range, !together);
  query.place(rings.first, rings.query(0), lane);
  if (together) {
    if (warp < kHeads) row.store(params, warp, lane, query);
    if (second < kHeads) second_row.store(params, second, lane, query);
    sync_threads(1, 32 * sharers);
    query.load_scales(lane);
  }
  reader.acquire();  // all keys of the launch first: what is asked for at once comes later
  reader.ask_for_values();
}

// One consumer warp. Writes the outputs of segments that it has all of, and partial states of the others.
template <PageKinds kPages, int D, int kTiles, class Rings, bool kDistant, class AnyReader>
__device__ __forceinline__ void consume(const AttendParams& params, const Work& work, AnyReader& reader,
                                        const PartialPlace<D, kTiles, Rings, kDistant>& place,
                                        LabelScratch<kTiles>* scratch, uint8_t* own, const Pieces& shares, int warp,
                                        int lane) {
  constexpr bool kAllKinds = kPages == PageKinds::kAny;
  constexpr bool kNear = kCountsNear<kPages, kTiles>, kFar = kCountsFar<kPages, kTiles>, kCounts = kNear || kFar;
  constexpr bool kLabels =
      kAllKinds || kPages == PageKinds::kLabelledTwoBits || kPages == PageKinds::kFarTwoBits;  // there may be some
  const LabelPlace<D, kTiles> vectors = {scratch + (kCounts || params.labels ? warp : 0)};
  using Counts = std::conditional_t<kNear, NearCounts, FarCounts>;
  const CountPlace<D, Counts> counts(
      reinterpret_cast<Counts*>(kNear ? reinterpret_cast<uint8_t*>(&vectors.scratch->counts) : own),
      vectors.scratch->values);
  CountState known = {};
  std::conditional_t<kSharesQueries<kPages, kTiles>, SharedQuery<D, kTiles>, Query<D, kTiles>> query;
  SoftmaxState<D, kTiles> state;
  const UnitRange range = shares.at(warp);
  [[maybe_unused]] int wanted = 0, segment = -1;  // where another warp fills the ring
  if constexpr (kOwnRings<kPages, D, kTiles>) {
    begin_own_ring(params, work, place.rings, reader, shares, range, warp, lane, query);
    state.clear();
  } else {
    if constexpr (kSharesQueries<kPages, kTiles>) query.place(place.rings.first, own, lane);
    const Position start = work.locate(range.begin);
    wanted = uniform(start.sequence * work.heads + start.head);  // loaded before its first page arrives
  }
  while (true) {
    if (!kOwnRings<kPages, D, kTiles> && wanted != segment) {
      Query<D, kTiles> loaded;
      [[maybe_unused]] uint32_t touched;
      if constexpr (kNear) touched = vectors.touch(params, work, wanted, lane);
      load_query(params, wanted, lane, loaded);
      if constexpr (kNear) asm volatile("" ::"r"(touched));
      state.clear();
      if (kLabels && params.labels) vectors.template begin<kCounts>(params, work, wanted, lane, loaded);
      query = loaded;
      if constexpr (kCounts) counts.begin(lane, known);
      segment = wanted;
    }
    reader.acquire();
    const Tag tag = reader.tag();
    if constexpr (kOwnRings<kPages, D, kTiles>) {
      if (tag.has(Tag::kOpens)) {
        int here = lane;  // what follows from it is not to be kept in registers from page to page
        asm volatile("" : "+r"(here));
        query.place(place.rings.first, reader.query(), here);
        QueryRows<D> rows;
        rows.load(params, tag.segment, here);
        rows.store(params, here, query);
        __syncwarp();
        query.load_scales(here);
        state.clear();
      }
    } else if (tag.segment != segment) {
      wanted = tag.segment;
      continue;
    }
    if (tag.has(Tag::kRows)) {
      row_step<kAllKinds>(params, reader, tag, lane, query, state);
    } else if constexpr (kPages == PageKinds::kTwoBits && kTiles > 1 && D <= kValueSpan) {
      scaled_two_bit_step(reader, tag, lane, query, state);
    } else if constexpr (kPages == PageKinds::kTwoBits) {
      two_bit_step(reader, tag, lane, query, NoLabels(), state);
    } else if constexpr (kCounts) {
      two_bit_step(reader, tag, lane, query, CountedLabels<D, Counts>{vectors, counts, known, lane}, state);
    } else if constexpr (kPages == PageKinds::kLabelledTwoBits) {
      two_bit_step(reader, tag, lane, query, MatchedLabels<D, kTiles>{vectors, lane}, state);
    } else {
      page_step<kAllKinds>(params, reader, tag, lane, query, vectors, state);
    }
    if (!tag.has(Tag::kLast)) continue;
    state.complete();
    if constexpr (kCounts) {
      if (vectors.scratch->outgrown) state.sum[0] = NAN;
      if (kFar && tag.has(Tag::kFinal) && !tag.has(Tag::kComplete)) {
        counts.leave(lane);
      } else {
        counts.multiply(lane, state.sum[0], state);
      }
    } else if (kLabels && params.labels) {
      vectors.add_to_outputs(lane, state);
    }
    if (tag.has(Tag::kComplete)) {
      write_outputs(params, tag.segment, lane, state);
    } else {
      if (!kDistant) {
        write_partial(state, lane, tag.has(Tag::kFinal) ? place.back(warp) : place.front(warp));
      } else if (tag.has(Tag::kFinal)) {  // by itself: an address of either memory is slow to write to
        write_partial(state, lane, place.back(warp));
      } else {
        write_partial(state, lane, place.front(warp));
      }
    }
    if (tag.has(Tag::kFinal)) break;
  }
}

// What comes after the rings in shared memory: partial states (PartialPlace::front) if they are there, then this.
template <int D, int kTiles>
struct SharedTail {
  LabelScratch<kTiles>* vectors;  // [consumers], where there are vectors
  uint8_t* own;                   // [consumers][warp_bytes]
  DeviceSequence* sequences;      // [cached]
  MergeList* merges;
  int* before;  // [sequences + 1]

  KVASIR_HOST_DEVICE static constexpr int front_bytes(bool distant_fronts) {
    return distant_fronts ? 0 : 4 * kPartialFloats<D, kTiles>;
  }
  static int bytes(const BlockNeeds& needs, int consumers, int cached, const AttendShape& shape) {
    return consumers * (front_bytes(needs.distant_fronts) + needs.warp_bytes +
                        (shape.labels ? static_cast<int>(sizeof(LabelScratch<kTiles>)) : 0)) +
           static_cast<int>(sizeof(DeviceSequence)) * cached + static_cast<int>(sizeof(MergeList)) +
           4 * (shape.sequences + 1);
  }
  __device__ SharedTail(uint8_t* first, bool distant_fronts, int warp_bytes, int consumers, int cached, bool has_labels)
      : vectors(reinterpret_cast<LabelScratch<kTiles>*>(first + front_bytes(distant_fronts) * consumers)),
        own(reinterpret_cast<uint8_t*>(vectors + (has_labels ? consumers : 0))),
        sequences(reinterpret_cast<DeviceSequence*>(own + warp_bytes * consumers)),
        merges(reinterpret_cast<MergeList*>(sequences + cached)),
        before(reinterpret_cast<int*>(merges + 1)) {}
};

// What a block has in shared memory, and where its warps leave partial states.
template <PageKinds kPages, int D, int kTiles>
struct BlockPlace {
  using Rings = RingsOf<kPages, D, kTiles>;
  static constexpr BlockNeeds kNeeds = kBlockNeeds<kPages, D, kTiles>;

  Rings rings;
  SharedTail<D, kTiles> tail;
  PartialPlace<D, kTiles, Rings, kNeeds.distant_fronts> partials;

  __device__ BlockPlace(const AttendParams& params, uint8_t* shared, int consumers)
      : rings{shared, consumers, params.slots},
        tail(rings.end(), kNeeds.distant_fronts, kNeeds.warp_bytes, consumers, params.cached, params.labels),
        partials{rings, kNeeds.distant_fronts ? params.block_partials : reinterpret_cast<float*>(rings.end())} {}

  // The same, worked out anew after the last pages: registers that keep it through all of them are missing there.
  __device__ static BlockPlace again(const AttendParams& params, uint8_t* shared) {
    int consumers = params.consumers;
    asm volatile("" : "+r"(consumers));
    return BlockPlace(params, shared, consumers);
  }
};

// What warps that fill their rings themselves do after their last pages.
template <PageKinds kPages, int D, int kTiles>
__device__ __forceinline__ void end_own_rings(const AttendParams& params, uint8_t* shared) {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));  // for the same reason
  const int warp = uniform(thread / 32), lane = thread % 32;
  const auto place = BlockPlace<kPages, D, kTiles>::again(params, shared);
  const SharedTail<D, kTiles>& tail = place.tail;
  int before = 0;  // warps that have finished: the first works out what there is to merge
  if (lane == 0) before = atomicAdd(&tail.merges->finished, 1);
  if (uniform(before) == 0) {
    const Work work = {tail.before, tail.sequences, params.count, params.kv_heads * params.row_blocks};
    const KnownDivision& known = *place.rings.division(warp);
    plan_merges<kTiles>(params, work, known.blocks, known.warps, known.warps.count(), lane, tail.merges);
  }
  __syncthreads();
  BlockMerge(params, place.partials, tail.merges).run(NothingLeft());
}

template <int D, int kTiles, PageKinds kPages>
__global__ void __launch_bounds__(32 * (kBlockNeeds<kPages, D, kTiles>.consumers +
                                        (kOwnRings<kPages, D, kTiles> ? 0 : 1)),
                                  1) attend_kernel(const __grid_constant__ AttendParams params) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int consumers = params.consumers;
  // Code for all kinds of pages spills 100 bytes more where the compiler knows that lanes share it.
  const int warp = kPages == PageKinds::kAny ? static_cast<int>(threadIdx.x / 32) : warp_index();
  const int lane = threadIdx.x % 32;
  using Place = BlockPlace<kPages, D, kTiles>;
  const Place place(params, shared, consumers);
  const auto& rings = place.rings;
  const SharedTail<D, kTiles>& tail = place.tail;
  if constexpr (!Place::kNeeds.producer) {
    if (lane < Place::Rings::kSlots) barrier_init(rings.full(warp, lane), own_arrivals());
  } else if (warp < consumers && lane < params.slots) {  // each warp its own: initialising is serial inside a warp
    barrier_init(rings.full(warp, lane), full_arrivals());
    barrier_init(rings.empty(warp, lane), 1);
  }
  if (kCountsFar<kPages, kTiles> && warp < consumers && lane == 0) {
    reinterpret_cast<FarCounts*>(tail.own)[warp].left = 0;
  }
  if (threadIdx.x == 0) tail.merges->finished = 0;
  fence_barrier_inits();
  let_next_grid_start();
  // Nothing before one of the two waits writes global memory, or reads anything but descriptions that are settled.
  if (!params.settled) wait_for_grids_before();
  const bool equal = count_units(params, tail.before, tail.sequences);

  const Work work = {tail.before, tail.sequences, params.count, params.kv_heads * params.row_blocks};
  const BlockDivision division = BlockDivision::of(work, equal, gridDim.x, params.short_units, params.even);
  const bool works = static_cast<int>(blockIdx.x) < uniform(division.blocks);
  const UnitRange ours = works ? division.pieces.at(blockIdx.x) : UnitRange{0, 1};
  // As many as make all of them equally busy, where they have little to do, or much to do at the ends of it.
  constexpr bool kLabels = kPages == PageKinds::kLabelledTwoBits || kPages == PageKinds::kFarTwoBits;
  const int most = Place::kNeeds.producer ? consumers : max(consumers - 1, 1);  // of 16 pages eight warps have two each
  // Few units without a division, which all would wait for.
  int busy = ours.size() <= most ? ours.size() : ours.size() <= 2 * most ? (ours.size() + 1) / 2 : consumers;
  if (kLabels && ours.size() > 2 * most) {
    const int rounds = quotient(ours.size() + most - 1, most);
    busy = quotient(ours.size() + rounds - 1, rounds);
  }
  const int warps = uniform(busy);
  const Pieces shares(ours, warps);
  if (params.settled) wait_for_grids_before();

  const int64_t row = static_cast<int64_t>(params.kv_heads) * params.group * D;
  for (int s = blockIdx.x; s < params.count; s += gridDim.x) {  // sequences without tokens
    if (work.units(s) > 0) continue;
    for (int i = threadIdx.x; i < row; i += blockDim.x) {
      store_number(params.outputs, params.type, s * row + i, 0.0f);
      if (i % D == 0) end_row(params.ends, params.kv_heads * params.group, (s * row + i) / D, kHidden, 0.0f, true);
    }
  }
  if (!works) return;

  uint8_t* const own = tail.own + warp * Place::kNeeds.warp_bytes;
  if constexpr (!Place::kNeeds.producer) {
    if (lane == 0) *rings.division(warp) = {division.pieces, shares};
    __syncwarp();
    if (warp < warps) {
      OwnReader<D> reader(params, rings, work, shares.at(warp), warp, lane);
      consume<kPages>(params, work, reader, place.partials, tail.vectors, own, shares, warp, lane);
    }
    end_own_rings<kPages, D, kTiles>(params, shared);
  } else {
    if (warp == consumers) {
      produce(params, work, rings, lane < warps ? shares.at(lane) : UnitRange{0, 0}, lane);
      plan_merges<kTiles>(params, work, division.pieces, shares, warps, lane, tail.merges);
    } else if (warp < warps) {
      Reader<D> reader(rings, warp, lane);
      consume<kPages>(params, work, reader, place.partials, tail.vectors, own, shares, warp, lane);
    }
    __syncthreads();
    const Place end = Place::again(params, shared);
    BlockMerge merge(params, end.partials, end.tail.merges);
    if constexpr (kCountsFar<kPages, kTiles>) {
      merge.run(LeftCounts<D>{end.partials, end.tail.vectors, reinterpret_cast<FarCounts*>(end.tail.own)});
    } else {
      merge.run(NothingLeft());
    }
  }
}

}  // namespace kvasir::cuda
