// Weights times bits: the second kernel of CommVQ's attention.
//
// The value of a token is gain * (s C) with one bit in s for each row of C, the same bits for all heads. So what a part
// of a sequence adds up is, for each query head and each row n of C, the sum of weight * gain over the tokens whose bit
// n is set; C comes at the very end.
//
// Some warps of a block bring pages to shared memory and make weights (weights.cuh), a page ahead of the others,
// each of which multiplies its rows of C's bits by the weights of all 128 tokens and 32 heads.
#include "kernels/cuda/commvq/row_part.cuh"
#include "kernels/cuda/commvq/weights.cuh"
#include "kernels/cuda/primitives/barrier.cuh"
#include "kernels/cuda/primitives/overlapping_launch.h"

namespace kvasir::cuda {
namespace {

constexpr int kWeightThreads = 32 * kWeightWarps;

// Bits of a block's rows of C for one page: by tiles of rows, steps of 32 tokens, two rows.
struct PageBits {
  uint2 rows[kBlockCodes / kTileSize][kPageSteps][kTileSize / 2];
};

struct PageShared {
  PageBits bits[4];        // of the page that is multiplied and the next ones
  PageScores scores[3];    // of the next ones
  PageWeights weights[2];  // one is written while the other is read
  float sums[kWeightWarps][8];
};
static_assert(sizeof(PageShared) <= 99 * 1024, "fits wherever sm_80 code runs");

struct Range {
  uint32_t begin, end;
};
__device__ __forceinline__ Range pages_of(const CommVqParams& params, int page_count, int split) {
  return {static_cast<uint32_t>(static_cast<int64_t>(page_count) * split / params.splits),
          static_cast<uint32_t>(static_cast<int64_t>(page_count) * (split + 1) / params.splits)};
}

// This warp's rows of C: lane g of a tile has rows 2 g and 2 g + 1, which are rows g and g + 8 of the operand.
class CodeTiles {
 public:
  // `tiles`: of the codebook.
  __device__ CodeTiles(int code_slice, int warp, int tiles, int lane)
      : in_block_(warp * kWarpCodeTiles),
        first_(code_slice * (kBlockCodes / kTileSize) + in_block_),
        tiles_(tiles),
        k_(lane % 4),
        g_(lane / 4) {}

  // Heads and rows that do not exist get sums of whatever there is, which nobody reads.
  __device__ __forceinline__ void multiply(const PageBits& bits, const PageWeights& page, int lane) {
    const uint4 changed = *reinterpret_cast<const uint4*>(page.changed);
    if ((changed.x | changed.y | changed.z | changed.w) != 0) scale(page);
#pragma unroll
    for (int s = 0; s < kPageSteps; ++s) {
      uint4 operands[kWarpCodeTiles][2];
#pragma unroll
      for (int t = 0; t < kWarpCodeTiles; ++t) bits_to_halves(bits.rows[in_block_ + t][s][g_], k_, operands[t]);
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n) {
        const uint4 b = page.fragments[s][n][lane];
#pragma unroll
        for (int t = 0; t < kWarpCodeTiles; ++t) mma_halves(sums_[t][n], operands[t][0], b.x, b.y);
#pragma unroll
        for (int t = 0; t < kWarpCodeTiles; ++t) mma_halves(sums_[t][n], operands[t][1], b.z, b.w);
      }
    }
  }

  // To [query_heads][codes], from head `first_head` on.
  __device__ __forceinline__ void store(float* to, int first_head, int query_heads) const {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = first_head + 8 * n + 2 * k_ + i;
        if (head >= query_heads) break;
#pragma unroll
        for (int t = 0; t < kWarpCodeTiles; ++t) {
          if (first_ + t >= tiles_) break;
          float* const row = to + (static_cast<int64_t>(head) * tiles_ + first_ + t) * kTileSize;
          reinterpret_cast<float2*>(row)[g_] = {sums_[t][n][i] * kSumUnit, sums_[t][n][2 + i] * kSumUnit};
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void scale(const PageWeights& page) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      const float2 keep = reinterpret_cast<const float2*>(page.keep[n])[k_];
#pragma unroll
      for (int t = 0; t < kWarpCodeTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_[t][n][i] *= i % 2 == 0 ? keep.x : keep.y;
      }
    }
  }

  const int in_block_, first_, tiles_, k_, g_;  // the first tile, of the block and of the codebook
  float sums_[kWarpCodeTiles][kHeadTiles][4] = {};
};

// Brings pages to shared memory: what a thread of the warps that make weights copies of each, 16 bytes at a time.
class PageCopies {
 public:
  __device__ PageCopies(const CommVqParams& params, const CommVqSequence& sequence, const Range& range,
                        const float* scores, int first_head, int first_code)
      : pages_(sequence.pages),
        values_(params.value_offset()),
        next_(range.begin),
        end_(range.end),
        data_(next_ < end_ ? pages_[next_] : nullptr),
        far_(kTileStep * params.query_heads() * kTileBytes),
        scores_(reinterpret_cast<const uint8_t*>(scores) +
                (int64_t{next_} * kTilesPerPage + tile()) * params.query_heads() * kTileBytes + 16 * chunk()),
        bits_(2 * kPageTokens + 16 * (first_code + thread())),
        head_exists_(chunk() < (params.query_heads() - first_head) * (kTileBytes / 16)),
        codes_(params.codes - first_code - thread()) {}

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
        if (i < codes_) copy16(shared_address(bits.rows) + 16 * (i + thread()), values + bits_ + 16 * i, evict_first());
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

// A part of a sequence, for some rows of the codebook and a block of query heads.
struct PagePart {
  const CommVqParams& params;
  const CommVqSequence& sequence;
  const int64_t number;  // of all parts
  const int code_slice, first_head;
  const Range range;
  const int64_t tile_stride;
  const float* const scores;  // of the sequence and the first head
  PageShared& shared;

  // A whole warp.
  __device__ PagePart(const CommVqParams& p, int column, int split, int sequence_index, PageShared& memory)
      : params(p),
        sequence(p.sequences[sequence_index]),
        number(int64_t{sequence_index} * p.splits + split),
        code_slice(column % p.code_slices),
        first_head(column / p.code_slices * kBlockHeads),
        range(pages_of(p, sequence.page_count, split)),
        tile_stride(int64_t{p.query_heads()} * kTileSize),
        scores(p.scores + pages_before(p, sequence_index, threadIdx.x % 32) * kTilesPerPage * tile_stride +
               first_head * kTileSize),
        shared(memory) {}

  __device__ __forceinline__ void multiply(int warp, int lane) const {
    CodeTiles codes(code_slice, warp, params.codes / kTileSize, lane);
    for (uint32_t page = range.begin; page < range.end; ++page) {
      meet();
      codes.multiply(shared.bits[page % 4], shared.weights[page % 2], lane);
    }
    codes.store(params.sums + number * params.query_heads() * params.codes, first_head, params.query_heads());
    meet();
  }

  __device__ __forceinline__ void make_weights(int warp, int lane) const {
    PageCopies copies(params, sequence, range, scores, first_head, code_slice * kBlockCodes);
    StepWeights weights(warp, lane);
    const int head = first_head + weights.head(), last_head = params.query_heads() - 1;
    const bool head_tile_exists = head - lane / 4 <= last_head, sliced = params.score_slices > 1;
    const float* const head_scores = scores + (min(head, last_head) - first_head) * kTileSize;
    const auto start = [&](uint32_t page) { copies.start(shared.scores[page % 3], shared.bits[page % 4]); };
    const auto add_slices = [&](uint32_t page) {
      if (sliced && page < range.end) weights.add_slices(params, head_scores + page * kTilesPerPage * tile_stride);
    };
    const auto make = [&](uint32_t page) {
      if (!head_tile_exists || page >= range.end) return;
      weights.make(shared.scores[page % 3], shared.weights[page % 2], sliced, params.cap,
                   page == 0 ? sequence.hidden_tokens : 0);
      add_slices(page + 1);
    };
    if (warp == 0 && lane < 2 * kHeadTiles) shared.weights[lane / kHeadTiles].changed[lane % kHeadTiles] = 0;
    if (range.begin < range.end) {
      for (int i = 0; i < 3; ++i) start(range.begin + i);
      add_slices(range.begin);
      wait_copies<2>();  // the first is there
      sync_threads(kFirstBarrier, kWeightThreads);
      make(range.begin);
    }
    for (uint32_t page = range.begin; page < range.end; ++page) {
      wait_copies<1>();  // the next one is there
      meet();
      start(page + 3);
      make(page + 1);
    }
    const float sum = weights.sum();
    if (lane % 4 == 0) shared.sums[warp][lane / 4] = sum;
    meet();
    if (code_slice != 0 || warp >= kHeadTiles || lane % 4 != 0 || head > last_head) return;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWeightWarps; w += kHeadTiles) total += shared.sums[warp + w][lane / 4];
    params.states[number * params.query_heads() + head] = {weights.level(), total};
  }

  // All warps, whatever they do: before each page, when its bits and weights are there, and at the end.
  __device__ __forceinline__ static void meet() { sync_threads(kPageBarrier, 32 * kValueWarps); }

  // After those of weights.cuh.
  static constexpr int kFirstBarrier = 1 + kHeadTiles, kPageBarrier = kFirstBarrier + 1;
};

constexpr int kRowBytes = 4 * (RowPart::kFloats + RowPart::kStateFloats);
constexpr int kSharedBytes = sizeof(PageShared) > kRowBytes ? sizeof(PageShared) : kRowBytes;

// Blocks for rows come first. They need no scores, and the launch that makes them, without which this one does not
// start, has waited for all before it.
__global__ void __launch_bounds__(32 * kValueWarps, 1) value_kernel(const __grid_constant__ CommVqParams params) {
  extern __shared__ __align__(16) uint8_t shared[];
  let_next_grid_start();
  const int rows = params.tables.kv_heads * params.row_blocks;
  if (static_cast<int>(blockIdx.x) < rows * params.count) {
    const int sequence = blockIdx.x / rows;
    float* const out = params.row_states + int64_t{blockIdx.x} * row_state_floats(params.tables.head_dim);
    auto* const floats = reinterpret_cast<float*>(shared);
    RowPart(params, sequence, blockIdx.x % rows, floats).run(floats + RowPart::kFloats, out);
    return;
  }
  const int block = blockIdx.x - rows * params.count, columns = params.code_slices * params.head_blocks;
  const PagePart part(params, block % columns, block / columns % params.splits, block / columns / params.splits,
                      *reinterpret_cast<PageShared*>(shared));
  wait_for_grids_before();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < kMultiplyWarps) {
    part.multiply(warp, lane);
  } else {
    part.make_weights(warp - kMultiplyWarps, lane);
  }
}

}  // namespace

cudaError_t prepare_values(bool* overlaps) { return prepare_kernel(value_kernel, kSharedBytes, overlaps); }

cudaError_t launch_values(const CommVqParams& params, cudaStream_t stream) {
  const int blocks = params.count * (params.tables.kv_heads * params.row_blocks +
                                     params.splits * params.code_slices * params.head_blocks);
  return launch_kernel(value_kernel, {dim3(blocks), 32 * kValueWarps, kSharedBytes, params.overlaps}, params, stream);
}

}  // namespace kvasir::cuda
