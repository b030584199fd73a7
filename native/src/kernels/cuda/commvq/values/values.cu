// Weights times bits: the second kernel of CommVQ's attention.
//
// The value of a token is gain * (s C) with one bit in s for each row of C, the same bits for all heads. So what a part
// of a sequence adds up is, for each query head and each row n of C, the sum of weight * gain over the tokens whose bit
// n is set; C comes at the very end.
//
// Some warps of a block bring pages to shared memory and make weights (weights.cuh), a page ahead of the others,
// each of which multiplies its rows of C's bits by the weights of all 128 tokens and 32 heads. Hopper has a kernel of
// its own (hopper/).
#include "kernels/cuda/commvq/values/hopper/values.h"
#include "kernels/cuda/commvq/values/weights.cuh"
#include "kernels/cuda/primitives/hopper.h"
#include "kernels/cuda/primitives/overlapping_launch.h"

namespace kvasir::cuda {
namespace {

constexpr int kWeightThreads = 32 * kWeightWarps;

// Scores and gains of a page. The gap keeps lanes that read two tiles apart from each other's banks.
struct PageScores {
  float scores[kTilesPerPage][kBlockHeads * kTileSize + 4];
  uint16_t gains[kPageTokens];
};

// Weights of a page.
struct PageWeights {
  uint4 fragments[kPageSteps][kHeadTiles][32];  // of B, by classes
  float keep[kBlockHeads];                      // what sums so far are multiplied by
  uint32_t changed[kWeightWarps];               // whether any of a warp's `keep` is not 1
};

struct PageShared {
  PageBits bits[4];        // of the page that is multiplied and the next ones
  PageScores scores[3];    // of the next ones
  PageWeights weights[2];  // one is written while the other is read
};
static_assert(sizeof(PageShared) <= 99 * 1024, "fits wherever sm_80 code runs");

// This warp's rows of C. Heads and rows that do not exist get sums of whatever there is, which nobody reads.
class CodeTiles {
 public:
  __device__ CodeTiles(int warp, int lane) : first_(warp * kWarpCodeTiles), lane_(lane) {}

  __device__ __forceinline__ void multiply(const PageBits& bits, const PageWeights& page) {
    const int g = lane_ / 4, k = lane_ % 4;
    const auto* const changed = reinterpret_cast<const uint4*>(page.changed);
    if ((any_of(changed[0]) | any_of(changed[1])) != 0) codes_.scale(page.keep, k);
#pragma unroll
    for (int s = 0; s < kPageSteps; ++s) {
      uint4 operands[kWarpCodeTiles][2];
#pragma unroll
      for (int t = 0; t < kWarpCodeTiles; ++t) bits_to_halves(bits.rows[first_ + t][s][g], k, operands[t]);
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n) {
        const uint4 b = page.fragments[s][n][lane_];
#pragma unroll
        for (int t = 0; t < kWarpCodeTiles; ++t) mma_halves(codes_.sums[t][n], operands[t][0], b.x, b.y);
#pragma unroll
        for (int t = 0; t < kWarpCodeTiles; ++t) mma_halves(codes_.sums[t][n], operands[t][1], b.z, b.w);
      }
    }
  }

  __device__ __forceinline__ void store(const PagePart& part) const { codes_.store(part, first_, lane_); }

 private:
  __device__ __forceinline__ static uint32_t any_of(const uint4& words) {
    return words.x | words.y | words.z | words.w;
  }

  const int first_, lane_;  // tile of the block
  CodeSums<kWarpCodeTiles, 1> codes_;
};

// Brings pages to shared memory: what a thread of the warps that make weights copies of each, 16 bytes at a time.
class PageCopies {
 public:
  __device__ explicit PageCopies(const PagePart& part)
      : pages_(part.sequence.pages),
        values_(part.params.value_offset()),
        next_(part.begin),
        end_(part.end),
        data_(next_ < end_ ? pages_[next_] : nullptr),
        far_(kTileStep * part.params.query_heads() * kTileBytes),
        scores_(reinterpret_cast<const uint8_t*>(part.scores) +
                (int64_t{next_} * kTilesPerPage + tile()) * part.params.query_heads() * kTileBytes + 16 * chunk()),
        bits_(2 * kPageTokens + 16 * (part.code_slice * kBlockCodes + thread())),
        head_exists_(chunk() < (part.params.query_heads() - part.first_head) * (kTileBytes / 16)),
        codes_(part.codes() - thread()) {}

  // The next page, as one group of copies; an empty group where there is none.
  __device__ __forceinline__ void start(PageScores& scores, PageBits& bits) {
    if (next_ < end_) {
      const uint8_t* const values = data_ + values_;
      if (++next_ < end_) data_ = pages_[next_];  // its address is there when it is needed
      if (head_exists_) {
        const uint32_t place = shared_address(scores.scores[tile()]) + 16 * chunk();
#pragma unroll
        for (int i = 0; i < kTilesPerPage / kTileStep; ++i) {
          copy16(place + i * kTileStep * static_cast<int>(sizeof(scores.scores[0])), scores_ + i * far_);
        }
      }
      scores_ += kTilesPerPage / kTileStep * far_;
#pragma unroll
      for (int i = 0; i < kBlockCodes; i += kWeightThreads) {
        if (i < codes_) copy16(shared_address(bits.rows) + 16 * (i + thread()), values + bits_ + 16 * i);
      }
      if (thread() < 2 * kPageTokens / 16) {
        copy16(shared_address(scores.gains) + 16 * thread(), values + 16 * thread());
      }
    }
    commit_copies();
  }

 private:
  static constexpr int kTileBytes = 4 * kTileSize;                                    // of a head
  static constexpr int kTileStep = kWeightThreads / (kBlockHeads * kTileBytes / 16);  // tiles at a time
  static_assert(kTilesPerPage % kTileStep == 0 && kBlockCodes % kWeightThreads == 0, "threads have equal shares");

  __device__ __forceinline__ static int thread() { return threadIdx.x - 32 * kMultiplyWarps; }
  __device__ __forceinline__ static int tile() { return thread() / (kBlockHeads * kTileBytes / 16); }
  __device__ __forceinline__ static int chunk() { return thread() % (kBlockHeads * kTileBytes / 16); }

  const uint8_t* const* const pages_;
  const int64_t values_;  // offset in a page
  uint32_t next_;
  const uint32_t end_;
  const uint8_t* data_;  // of the next page
  const int64_t far_;    // from one of this thread's scores to the next
  const uint8_t* scores_;
  const int bits_;
  const bool head_exists_;
  const int codes_;  // from this thread's first one on
};

// All warps, whatever they do: before each page, when its bits and weights are there.
__device__ __forceinline__ void meet() { sync_threads(1, 32 * kValueWarps); }

__device__ __forceinline__ void multiply(const PagePart& part, const PageShared& shared, int warp, int lane) {
  CodeTiles codes(warp, lane);
  for (uint32_t page = part.begin; page < part.end; ++page) {
    meet();
    codes.multiply(shared.bits[page % 4], shared.weights[page % 2]);
  }
  codes.store(part);
}

__device__ __forceinline__ void make_weights(const PagePart& part, PageShared& shared, int warp, int lane) {
  PageCopies copies(part);
  HeadWeights weights(warp, lane);
  const CommVqParams& params = part.params;
  const int head = weights.head();
  const bool head_exists = part.first_head + head <= part.last_head(), sliced = params.score_slices > 1;
  const bool any_head = any_lane(head_exists);
  const int64_t place = weights.place(part.tile_stride, head_exists ? head : part.last_head() - part.first_head);
  HeadWeights::Scores rest = {};
  // What further slices of the tables add to the scores of a page.
  const auto add_slices = [&](uint32_t page) {
    if (!sliced || page >= part.end) return;
    const float* const from = part.scores + page * kTilesPerPage * part.tile_stride + place;
    rest = {};
#pragma unroll 1
    for (int s = 1; s < params.score_slices; ++s) {
      rest += HeadWeights::load(from + s * params.tiles * part.tile_stride, part.tile_stride);
    }
  };
  const auto start = [&](uint32_t page) { copies.start(shared.scores[page % 3], shared.bits[page % 4]); };
  const auto make = [&](uint32_t page) {
    if (!any_head || page >= part.end) return;
    const PageScores& input = shared.scores[page % 3];
    PageWeights& to = shared.weights[page % 2];
    constexpr int kStride = sizeof(input.scores[0]) / sizeof(float);
    HeadWeights::Scores scores = HeadWeights::load_shared(input.scores[0] + weights.place(kStride, head), kStride);
    if (sliced) scores += rest;
    const int hidden = page == 0 ? part.sequence.hidden_tokens : 0;
    if (params.cap > 0.0f || hidden > 0) weights.limit(scores, params.cap, hidden);
    weights.load_gains(input.gains);
    const float keep = weights.raise_level(scores);
    if (weights.leads_head()) to.keep[head] = keep;
    const bool changed = any_lane(keep != 1.0f);
    if (lane == 0) to.changed[warp] = changed;
    const uint4 octets[2] = {weights.octet(scores, 0), weights.octet(scores, 1)};
    uint4* const fragment = to.fragments[weights.step()][head / 8] + head % 8 * 4;
    auto* const words = reinterpret_cast<uint2*>(fragment) + weights.half();
    words[0] = {octets[0].x, octets[1].x};
    words[2] = {octets[0].y, octets[1].y};
    words[4] = {octets[0].z, octets[1].z};
    words[6] = {octets[0].w, octets[1].w};
    add_slices(page + 1);
  };
  if (lane < 2) shared.weights[lane].changed[warp] = 0;
  if (part.begin < part.end) {
    for (int i = 0; i < 3; ++i) start(part.begin + i);
    add_slices(part.begin);
    wait_copies<2>();  // the first is there
    sync_threads(2, kWeightThreads);
    make(part.begin);
  }
  for (uint32_t page = part.begin; page < part.end; ++page) {
    wait_copies<1>();  // the next one is there
    meet();
    start(page + 3);
    make(page + 1);
  }
  const float sum = weights.sum();
  if (part.code_slice == 0 && weights.leads_head()) part.store_state(head, weights.level(), sum);
}

constexpr int kSharedBytes = sizeof(PageShared) > kRowPartBytes ? sizeof(PageShared) : kRowPartBytes;

__global__ void __launch_bounds__(32 * kValueWarps, 1) value_kernel(const __grid_constant__ CommVqParams params) {
  extern __shared__ __align__(16) uint8_t memory[];
  let_next_grid_start();
  const int rows = row_parts(params);
  if (static_cast<int>(blockIdx.x) < rows) return run_row_part(params, memory);
  const PagePart part(params, blockIdx.x - rows);
  PageShared& shared = *reinterpret_cast<PageShared*>(memory);
  wait_for_grids_before();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < kMultiplyWarps) {
    multiply(part, shared, warp, lane);
  } else {
    make_weights(part, shared, warp - kMultiplyWarps, lane);
  }
}

}  // namespace

cudaError_t prepare_values([[maybe_unused]] bool generic, bool* hopper, bool* overlaps) {
  *hopper = false;
#ifdef KVASIR_HOPPER
  *hopper = !generic && on_hopper();
  if (*hopper) return prepare_hopper_values(overlaps);
#endif
  return prepare_kernel(value_kernel, kSharedBytes, overlaps);
}

cudaError_t launch_values(const CommVqParams& params, cudaStream_t stream) {
  const int blocks = params.count * (params.tables.kv_heads * params.row_blocks +
                                     params.splits * params.code_slices * params.head_blocks);
#ifdef KVASIR_HOPPER
  if (params.hopper) return launch_hopper_values(params, blocks, stream);
#endif
  return launch_kernel(value_kernel, {dim3(blocks), 32 * kValueWarps, kSharedBytes, params.overlaps}, params, stream);
}

}  // namespace kvasir::cuda
