// Weights times bits on Hopper: as values.cu, with products of warp groups, and nobody waits for all others.
//
// Pages go round a ring of slots in shared memory. Two warp groups make weights: a lane of theirs starts copies of bits
// and gains a few pages ahead, and each warp writes the weights of its four heads, whose scores it loads a page ahead.
// Two warp groups multiply, each 256 rows of C's bits by the weights of 128 tokens and 32 heads: bits come to be
// operands in registers, weights are read from where they were written. Products of three tiles of rows are on their
// way while the operands of the fourth are made.
#include "kernels/cuda/commvq/values/hopper/values.h"
#include "kernels/cuda/commvq/values/weights.cuh"
#include "kernels/cuda/primitives/overlapping_launch.h"
#include "kernels/cuda/primitives/wgmma.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kGroups = 2;                                            // that multiply
constexpr int kGroupTiles = kBlockCodes / (kGroups * 4 * kTileSize);  // of 64 rows, 16 for each warp of the group
constexpr int kMultipliers = 4 * kGroups;                             // warps
constexpr int kThreads = 32 * (kMultipliers + kWeightWarps);
constexpr int kSlots = 8;
constexpr int kAhead = 4;  // pages that are copied before weights are made of one

// Weights of a page: for each two steps of 32 tokens a tile whose lines are heads (swizzle_128). A line has the classes
// of one step, then of the other.
constexpr int kWeightTileBytes = kBlockHeads * 128;
constexpr int kWeightBytes = kPageSteps / 2 * kWeightTileBytes;
struct Shared {
  uint8_t weights[kSlots][kWeightBytes];
  PageBits bits[kSlots];
  uint16_t gains[kSlots][kPageTokens];
  float keep[kSlots][kBlockHeads];        // what sums so far are multiplied by
  uint8_t changed[kSlots][kWeightWarps];  // whether any of a warp's `keep` is not 1
  uint64_t there[kSlots];                 // bits and gains are
  uint64_t made[kSlots];                  // weights are
  uint64_t read[kSlots];                  // all are, and may be written again

  __device__ void init() {
    for (int s = 0; s < kSlots; ++s) {
      barrier_init(shared_address(&there[s]), 1);
      barrier_init(shared_address(&made[s]), kWeightWarps);
      barrier_init(shared_address(&read[s]), kMultipliers);
    }
    fence_barrier_inits();
  }
};
static_assert(kWeightTileBytes % 1024 == 0 && sizeof(Shared) <= 227 * 1024);
static_assert(kWeightWarps == 8, "their marks are read as one word");

// The round of the ring in which page i of a part is, as the parity that barriers have when its phase completes.
__device__ __forceinline__ uint32_t parity_of(uint32_t i) { return i / kSlots % 2; }

// Starts copies of bits and gains. One lane.
class BitCopies {
 public:
  __device__ BitCopies(const PagePart& part, Shared& shared) : part_(part), shared_(shared) {
    if (part.begin < part.end) data_ = part.sequence.pages[part.begin];
  }

  // Page i of the part, where there is one. They come one after the other.
  __device__ __forceinline__ void start(uint32_t i) {
    const uint32_t page = part_.begin + i;
    if (page >= part_.end) return;
    const int slot = i % kSlots, bytes = 16 * min(part_.codes(), kBlockCodes);
    const uint8_t* const values = data_ + part_.params.value_offset();
    if (page + 1 < part_.end) data_ = part_.sequence.pages[page + 1];  // its address is there when it is needed
    if (i >= kSlots) barrier_wait(shared_address(&shared_.read[slot]), parity_of(i - kSlots));
    const uint32_t there = shared_address(&shared_.there[slot]);
    const CachePolicy policy = evict_first();
    barrier_expect(there, 2 * kPageTokens + bytes);
    bulk_copy(shared_address(shared_.gains[slot]), values, 2 * kPageTokens, there, policy);
    const uint8_t* const bits = values + 2 * kPageTokens + 16 * kBlockCodes * part_.code_slice;
    bulk_copy(shared_address(&shared_.bits[slot]), bits, bytes, there, policy);
  }

 private:
  const PagePart& part_;
  Shared& shared_;
  const uint8_t* data_ = nullptr;  // of the next page
};

// A warp of those that make weights. kSliced: scores are sums of several numbers. Registers do not suffice for those of
// the next page beside this one's, so they are loaded when this one is done.
template <bool kSliced>
__device__ __forceinline__ void make_weights(const PagePart& part, Shared& shared, int warp, int lane) {
  BitCopies copies(part, shared);
  const bool copies_pages = warp == 0 && lane == 0;
  if (copies_pages) {
    for (int i = 0; i < kAhead; ++i) copies.start(i);
  }
  HeadWeights weights(warp, lane);
  const CommVqParams& params = part.params;
  const int head = min(weights.head(), part.last_head() - part.first_head);
  const int64_t page_stride = kTilesPerPage * part.tile_stride;
  const float* from = part.scores + part.begin * page_stride + weights.place(part.tile_stride, head);
  const uint32_t pages = part.end - part.begin;
  HeadWeights::Scores next, rest;
  const auto load = [&] {
    next = HeadWeights::load(from, part.tile_stride);
    if constexpr (kSliced) {
      const int64_t slice_stride = params.tiles * part.tile_stride;
      rest = HeadWeights::load(from + slice_stride, part.tile_stride);
      for (int s = 2; s < params.score_slices; ++s) {
        rest += HeadWeights::load(from + s * slice_stride, part.tile_stride);
      }
    }
    from += page_stride;
  };
  const uint32_t piece = weights.step() % 2 * 4 + 2 * weights.half();  // the second one's number differs in one bit
  const uint32_t place = weights.step() / 2 * kWeightTileBytes + swizzle_128(weights.head(), piece);
  wait_for_grids_before();
  if (pages > 0) load();
  for (uint32_t i = 0; i < pages; ++i) {
    const int slot = i % kSlots;
    if (copies_pages) copies.start(i + kAhead);
    HeadWeights::Scores scores = next;
    if constexpr (kSliced) {
      scores += rest;
    } else if (i + 1 < pages) {
      load();
    }
    const int hidden = part.begin + i == 0 ? part.sequence.hidden_tokens : 0;
    if (params.cap > 0.0f || hidden > 0) weights.limit(scores, params.cap, hidden);
    // What is there was copied to a slot that all had read before.
    barrier_wait(shared_address(&shared.there[slot]), parity_of(i));
    weights.load_gains(shared.gains[slot]);
    const float keep = weights.raise_level(scores);
    const bool changed = any_lane(keep != 1.0f);
    if (weights.leads_head()) shared.keep[slot][weights.head()] = keep;
    if (lane == 0) shared.changed[slot][warp] = changed;
    uint8_t* const to = shared.weights[slot];
    *reinterpret_cast<uint4*>(to + place) = weights.octet(scores, 0);
    *reinterpret_cast<uint4*>(to + (place ^ 16)) = weights.octet(scores, 1);
    fence_shared_operands();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared.made[slot]));
    if (kSliced && i + 1 < pages) load();
  }
  const float sum = weights.sum();
  if (part.code_slice == 0 && weights.leads_head()) part.store_state(weights.head(), weights.level(), sum);
}

// A warp of those that multiply.
__device__ __forceinline__ void multiply(const PagePart& part, Shared& shared, int warp, int lane) {
  CodeSums<kGroupTiles, 4> codes;
  const int first = warp / 4 * (4 * kGroupTiles) + warp % 4, g = lane / 4, k = lane % 4;
  const uint32_t pages = part.end - part.begin;
  const uint64_t weights = tile_descriptor(shared_address(shared.weights));
  uint2 rows[kGroupTiles];         // of the next step
  uint4 operands[kGroupTiles][2];  // of products that may be on their way
  const auto rows_of = [&](int slot, int step, int t) { return shared.bits[slot].rows[first + 4 * t][step][g]; };
  const auto finish_products = [&] {
    wait_products<0>();
#pragma unroll
    for (int t = 0; t < kGroupTiles; ++t) fence_sums(codes.sums[t]);
  };
  // When a page's bits and weights are there.
  const auto open = [&](uint32_t i) {
    const int slot = i % kSlots;
    barrier_wait(shared_address(&shared.there[slot]), parity_of(i));
#pragma unroll
    for (int t = 0; t < kGroupTiles; ++t) rows[t] = rows_of(slot, 0, t);
    barrier_wait(shared_address(&shared.made[slot]), parity_of(i));
  };
  if (pages > 0) open(0);
  for (uint32_t i = 0; i < pages; ++i) {
    const int slot = i % kSlots;
    const uint2 changed = *reinterpret_cast<const uint2*>(shared.changed[slot]);
    if (uniform(changed.x | changed.y) != 0) {
      finish_products();
      codes.scale(shared.keep[slot], k);
    }
#pragma unroll
    for (int s = 0; s < kPageSteps; ++s) {
      const uint64_t b = weights + slot * (kWeightBytes / 16) + s / 2 * (kWeightTileBytes / 16) + s % 2 * 4;
#pragma unroll
      for (int t = 0; t < kGroupTiles; ++t) {
        bits_to_halves(rows[t], k, operands[t]);
        if (s + 1 < kPageSteps) rows[t] = rows_of(slot, s + 1, t);
        fence_products();
        add_columns(codes.sums[t], operands[t][0], b);
        add_columns(codes.sums[t], operands[t][1], b + 2);
        commit_products();
        if (s + 1 == kPageSteps && t + 1 == kGroupTiles && i + 1 < pages) open(i + 1);
        wait_products<kGroupTiles - 1>();  // those of the next tile are complete
        if (s == 0 && t + 1 == kGroupTiles && i > 0 && lane == 0) {
          barrier_arrive(shared_address(&shared.read[(i - 1) % kSlots]));
        }
      }
    }
  }
  finish_products();
  codes.store(part, first, lane);
}

constexpr int kSharedBytes = sizeof(Shared) > kRowPartBytes ? sizeof(Shared) : kRowPartBytes;

__global__ void __launch_bounds__(kThreads, 1) hopper_value_kernel(const __grid_constant__ CommVqParams params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  let_next_grid_start();
  const int rows = row_parts(params);
  if (static_cast<int>(blockIdx.x) < rows) return run_row_part(params, memory);
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) shared.init();
  const PagePart part(params, blockIdx.x - rows);
  __syncthreads();
  const int warp = warp_index(), lane = threadIdx.x % 32;
  if (warp < kMultipliers) {
    take_registers<144>();
    multiply(part, shared, warp, lane);
  } else {
    leave_registers<112>();
    if (params.score_slices > 1) {
      make_weights<true>(part, shared, warp - kMultipliers, lane);
    } else {
      make_weights<false>(part, shared, warp - kMultipliers, lane);
    }
  }
}

}  // namespace

cudaError_t prepare_hopper_values(bool* overlaps) {
  return prepare_kernel(hopper_value_kernel, kSharedBytes, overlaps);
}

cudaError_t launch_hopper_values(const CommVqParams& params, int blocks, cudaStream_t stream) {
  return launch_kernel(hopper_value_kernel, {dim3(blocks), kThreads, kSharedBytes, params.overlaps}, params, stream);
}

}  // namespace kvasir::cuda
