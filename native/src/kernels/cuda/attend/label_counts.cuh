// Sums of weights by value vector in pages of 2 bits, for four query heads: whole numbers in shared memory, which the
// lanes of a warp add to by label.
//
// The sum of all weights of a head takes 24 to 30 bits of such a number, so that no sum overflows and none loses what
// float32 would keep; equal input gives equal bits, since whole numbers add up in any order. References of these sums
// are whole numbers, too, at or above that of the softmax: when it rises, sums are shifted.
//
// Sums are multiplied with vectors when a segment ends inside a warp's piece. Where there are many vectors and a piece
// ends inside a segment, the block does so once for all its warps (LeftCounts): vectors are read once a block, not once
// a warp.
#pragma once

#include <climits>

#include "kernels/cuda/attend/labels.cuh"
#include "kernels/cuda/attend/merge.cuh"

namespace kvasir::cuda {

__device__ __forceinline__ void add_shared(uint32_t address, int number) {
  asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(address), "r"(number) : "memory");
}

// What a lane knows of the sums of its head while nothing changes.
struct CountState {
  float max;    // the softmax's reference
  float scale;  // of weights that are relative to it
};

// add_vectors of two tiles, whose loads are on their way together.
template <int D>
__device__ __forceinline__ void add_two_tiles(const uint8_t* vectors, int tile, int next, int lane,
                                              const float (&factors)[1][2], const float (&others)[1][2],
                                              const float (&gain)[1], SoftmaxState<D, 1>& state) {
  constexpr int kGroups = D / 16, kAtOnce = kGroups < 8 ? kGroups : 8;
  const uint32_t low = split_halves(factors[0][0]), high = split_halves(factors[0][1]);
  const uint32_t next_low = split_halves(others[0][0]), next_high = split_halves(others[0][1]);
#pragma unroll
  for (int begin = 0; begin < kGroups; begin += kAtOnce) {
    uint4 words[2][kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce && begin + i < kGroups; ++i) {
      words[0][i] = vector_group<D>(vectors, tile, begin + i, lane);
      words[1][i] = vector_group<D>(vectors, next, begin + i, lane);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce && begin + i < kGroups; ++i) {
      float c[4] = {};
      mma_halves(c, words[0][i], low, high);
      mma_halves(c, words[1][i], next_low, next_high);
      float* const output = state.output[0] + 2 * (begin + i);
      output[0] = fmaf(c[0] + c[1], gain[0], output[0]);
      output[1] = fmaf(c[2] + c[3], gain[0], output[1]);
    }
  }
}

template <int D, class Counts>
class CountPlace {
 public:
  static constexpr bool kFar = Counts::kRows > kNearVectors;

  __device__ CountPlace(Counts* counts, const LabelSide& values) : counts_(counts), values_(values) {}

  // At the start of a segment.
  __device__ __forceinline__ void begin(int lane, CountState& known) const {
    __syncwarp();
    clear(lane);
    if (lane == 0) counts_->left = 0;
    __syncwarp();
    known.max = INFINITY;  // which no softmax has
  }

  // A page's weights, at most 1, and relative to the state's reference times `gain`. The state has them already.
  // labels: of the page's values.
  __device__ __forceinline__ void add(const uint8_t* labels, int page, int lane, const float (&weights)[16], float gain,
                                      SoftmaxState<D, 1>& state, CountState& known) const {
    const int shift = kFar ? values_.shift(page) : 0;
    bool changes = state.max[0] != known.max || state.sum[0] * known.scale > kMostShare;
    if (kFar) changes |= leaves_rows(shift);
    if (__any_sync(0xffffffffu, changes)) adjust(shift, lane, state, known);
    const float factor = gain * known.scale;
    const int after = kFar ? shift - counts_->base : 0, fixed = values_.fixed;
    const auto* const words = reinterpret_cast<const uint4*>(labels) + lane / 8 * 2;
    const uint4 low = words[0], high = words[1];
    const uint32_t eight[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const uint32_t even = 0x4440 + lane / 4 % 2 * 2, odd = even + 1;  // as value_label_byte has it
    const uint32_t column = shared_address(&counts_->sums[0][lane % 4]), later = column + 16 * after;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint32_t label = __byte_perm(eight[i / 2], 0, i % 2 == 0 ? even : odd);
      const uint32_t first = kFar && static_cast<int>(label) > fixed ? later : column;
      add_shared(first + 16 * label, __float2int_rn(weights[i] * factor));
    }
    __syncwarp();
  }

  // Adds what the sums stand for to the outputs. total: of all weights.
  __device__ __forceinline__ void multiply(int lane, float total, SoftmaxState<D, 1>& state) const {
    if (counts_->base < 0) return;
    __syncwarp();
    const int h = lane % 4, g = lane / 4, fixed = values_.fixed;
    const float scale =
        __fdividef(weight_of(counts_->reference[h], state.max[0]), counts_->unit[h] * total);  // to shares of all
    const CountedTiles tiles(values_, counts_->base, counts_->base, Counts::kRows);
    const float gain[1] = {total};
    // Two at a time, and the last one again with nothing where they are odd: vectors come from far away.
#pragma unroll 1
    for (int i = 0; i < tiles.count(); i += 2) {
      const bool two = i + 1 < tiles.count();
      const int tile = tiles.at(i), next = tiles.at(two ? i + 1 : i);
      const int vector = tile * kTileSize + g, after = next * kTileSize + g;
      const float last = two ? scale : 0.0f;
      const float factors[1][2] = {
          {counts_->sum_of(vector, fixed, h) * scale, counts_->sum_of(vector + 8, fixed, h) * scale}};
      const float others[1][2] = {
          {counts_->sum_of(after, fixed, h) * last, counts_->sum_of(after + 8, fixed, h) * last}};
      add_two_tiles<D>(values_.vectors, tile, next, lane, factors, others, gain, state);
    }
    __syncwarp();
  }

  // Leaves the sums to the block.
  __device__ __forceinline__ void leave(int lane) const {
    if (lane == 0) counts_->left = 1;
  }

 private:
  static constexpr float kFirstUnit = 0x1p23f;  // a page of weights of 1 is 2^30, a lane's share of it 2^27
  static constexpr float kMostShare = 0x1p27f;
  static constexpr int kMostBits = 27, kLeastBits = 24;

  __device__ __forceinline__ void clear(int lane) const {
    for (int i = lane; i <= Counts::kRows; i += 32) {
      *reinterpret_cast<int4*>(counts_->sums[i]) = make_int4(0, 0, 0, 0);
    }
    if (lane < 4) counts_->unit[lane] = kFirstUnit;
    if (lane == 0) counts_->base = -1;
  }

  // Whether a page of this shift has vectors that there are no rows for.
  __device__ __forceinline__ bool leaves_rows(int shift) const {
    return counts_->base >= 0 && kMaxVisible + shift - counts_->base > Counts::kRows;
  }

  // Sums follow the reference of the softmax, and leave room for all weights.
  __device__ __forceinline__ void adjust(int shift, int lane, SoftmaxState<D, 1>& state, CountState& known) const {
    const float total = sum_over_rows(state.sum[0]);
    if (kFar && leaves_rows(shift)) {
      multiply(lane, total, state);
      clear(lane);
      __syncwarp();
    }
    const int h = lane % 4;
    const bool first = counts_->base < 0;
    const float reference = ceilf(state.max[0]), unit = counts_->unit[h];
    const float risen = first ? 0.0f : reference - counts_->reference[h];
    const int bits = static_cast<int>(__float_as_uint(total * unit) >> 23) - 127;
    const int room = bits >= kMostBits && !first ? bits - kLeastBits : 0;
    const float left = unit * __uint_as_float(static_cast<uint32_t>(127 - room) << 23);
    __syncwarp();
    if (lane < 4) {
      counts_->reference[h] = reference;
      counts_->unit[h] = left;
    }
    if (lane == 0 && first) counts_->base = shift;
    const int places = static_cast<int>(fminf(risen, 32.0f)) + room;
    if (__any_sync(0xffffffffu, places > 0)) {
#pragma unroll 4
      for (int r = lane / 4; r <= Counts::kRows; r += 8) {
        const int sum = counts_->sums[r][h], half = places > 0 ? 1 << (min(places, 31) - 1) : 0;
        counts_->sums[r][h] = places > 31 ? 0 : (sum + half) >> places;
      }
    }
    __syncwarp();
    known.max = state.max[0];
    known.scale = weight_of(state.max[0], reference) * left;
  }

  Counts* const counts_;
  const LabelSide& values_;
};

// What the warps of a block left of one segment: all of them multiply some of it, each for all.
template <int D>
struct LeftCounts {
  const PartialPlace<D, 1, RingPlace<D>, false>& place;
  const LabelScratch<1>* scratch;  // [warps]
  FarCounts* counts;               // [warps]
  static_assert(4 * kPartialFloats<D, 1> <= static_cast<int>(sizeof(FarCounts::sums)), "a partial state fits");

  // All threads: warps that left sums multiply them, and leave partial states in their place.
  __device__ __forceinline__ void prepare(const MergeList& list) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool has = warp < place.rings.rings && counts[warp].left != 0;
    SoftmaxState<D, 1> state;
    if (has) {
      int j = 0;
      while (warp < list.jobs[j].first_warp || warp >= list.jobs[j].first_warp + warps_of(list.jobs[j])) ++j;
      multiply(list.jobs[j], warp, lane, state);
    }
    __syncthreads();
    if (has) write_partial(state, lane, part(warp));
    __syncthreads();
  }

  // Partial states of a job's warps, part(first_warp), ....
  __device__ __forceinline__ int parts(const MergeJob& job) const {
    return counts[job.first_warp].left != 0 && warps_of(job) > 0 ? warps_of(job) : 0;
  }
  __device__ __forceinline__ float* part(int warp) const { return reinterpret_cast<float*>(counts[warp].sums); }

  // The last warp of a segment that ends inside its piece has multiplied by itself.
  __device__ static int warps_of(const MergeJob& job) {
    return job.last_warp - job.first_warp + (job.ends_inside ? 0 : 1);
  }
  // A warp's part. Nothing is written, since others still read sums.
  __device__ __forceinline__ void multiply(const MergeJob& job, int warp, int lane, SoftmaxState<D, 1>& state) const {
    const int h = lane % 4, g = lane / 4, warps = warps_of(job), parts = job.last_warp - job.first_warp + 1;
    const LabelSide values = scratch[warp].values;
    const auto end_of = [&](int p) {
      const bool inside = p == parts - 1 && job.ends_inside;
      const float* const partial = inside ? place.front(job.last_warp) : place.back(job.first_warp + p);
      return *reinterpret_cast<const float2*>(partial + h * kPartialHead<D> + D);
    };
    state.clear();
    // Lane g looks at parts and warps g and g + 8: a block has no more than 16.
    float2 ends[2];
    float highest = kNothing, total = 0.0f, scales[2];
    int first_base = INT_MAX, last_base = -1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int p = g + 8 * i;
      ends[i] = p < parts ? end_of(p) : make_float2(kNothing, 0.0f);
      highest = fmaxf(highest, ends[i].x);
    }
    highest = max_over_rows(highest);
#pragma unroll
    for (int i = 0; i < 2; ++i) total = fmaf(ends[i].y, weight_of(ends[i].x, highest), total);
    total = sum_over_rows(total);
    state.max[0] = highest;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int w = g + 8 * i;
      const FarCounts& its = counts[job.first_warp + (w < warps ? w : 0)];
      const bool has = w < warps && its.base >= 0;
      scales[i] = has ? __fdividef(weight_of(its.reference[h], highest), its.unit[h] * total) : 0.0f;
      if (has) first_base = min(first_base, its.base), last_base = max(last_base, its.base);
    }
    first_base = __reduce_min_sync(0xffffffffu, first_base);
    last_base = __reduce_max_sync(0xffffffffu, last_base);
    if (last_base < 0) return;
    const CountedTiles tiles(values, first_base, last_base, FarCounts::kRows);
    const float gain[1] = {total};
#pragma unroll 1
    for (int i = warp - job.first_warp; i < tiles.count(); i += warps) {
      const int vector = tiles.at(i) * kTileSize + g;
      float factors[1][2] = {};
#pragma unroll 4
      for (int w = 0; w < warps; ++w) {
        const FarCounts& its = counts[job.first_warp + w];
        const float scale = __shfl_sync(0xffffffffu, w < 8 ? scales[0] : scales[1], 4 * (w % 8) + h);
        factors[0][0] = fmaf(its.sum_of(vector, values.fixed, h), scale, factors[0][0]);
        factors[0][1] = fmaf(its.sum_of(vector + 8, values.fixed, h), scale, factors[0][1]);
      }
      add_vectors<D, 1>(values.vectors, tiles.at(i), lane, factors, gain, state);
    }
  }
};

}  // namespace kvasir::cuda
