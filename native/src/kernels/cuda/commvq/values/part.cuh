// What the kernels of weights times bits share, whatever multiplies: which part of a sequence a block has, and the sums
// that a warp keeps.
#pragma once

#include "kernels/cuda/commvq/common.cuh"
#include "kernels/cuda/commvq/values/row_part.cuh"

namespace kvasir::cuda {

constexpr int kPageSteps = kPageTokens / 32;  // of 32 tokens
constexpr int kHeadTiles = kBlockHeads / 8;   // of 8 query heads
// What sums of products must be multiplied by.
constexpr float kSumUnit = 128.0f;

// Bits of a block's rows of C for one page: by tiles of rows, steps of 32 tokens, two rows.
struct PageBits {
  uint2 rows[kBlockCodes / kTileSize][kPageSteps][kTileSize / 2];
};

// A part of a sequence, for some rows of the codebook and a block of query heads.
struct PagePart {
  const CommVqParams& params;
  const CommVqSequence& sequence;
  const int64_t number;  // of all parts
  const int code_slice, first_head;
  const uint32_t begin, end;  // pages
  const int64_t tile_stride;
  const float* const scores;  // of the sequence and the first head

  // A whole warp. `block`: of those for parts.
  __device__ PagePart(const CommVqParams& p, int block)
      : PagePart(p, block % columns(p), block / columns(p) % p.splits, block / columns(p) / p.splits) {}

  // Rows of the codebook from this part's first one on.
  __device__ __forceinline__ int codes() const { return params.codes - code_slice * kBlockCodes; }
  __device__ __forceinline__ int last_head() const { return params.query_heads() - 1; }

  // Once for all rows of the codebook. `head`: from the first one on. `sum`: of weights, in units of 2^level.
  __device__ __forceinline__ void store_state(int head, float level, float sum) const {
    if (first_head + head <= last_head()) {
      params.states[number * params.query_heads() + first_head + head] = {level, sum};
    }
  }

 private:
  __device__ static int columns(const CommVqParams& p) { return p.code_slices * p.head_blocks; }

  __device__ PagePart(const CommVqParams& p, int column, int split, int sequence_index)
      : params(p),
        sequence(p.sequences[sequence_index]),
        number(int64_t{sequence_index} * p.splits + split),
        code_slice(column % p.code_slices),
        first_head(column / p.code_slices * kBlockHeads),
        begin(static_cast<uint32_t>(int64_t{sequence.page_count} * split / p.splits)),
        end(static_cast<uint32_t>(int64_t{sequence.page_count} * (split + 1) / p.splits)),
        tile_stride(int64_t{p.query_heads()} * kTileSize),
        scores(p.scores + pages_before(p, sequence_index, threadIdx.x % 32) * kTilesPerPage * tile_stride +
               first_head * kTileSize) {}
};

// Sums of a warp for kTiles tiles of the codebook's rows, kApart tiles apart, as fragments of C are: lane g of a tile
// has rows 2 g and 2 g + 1, which are rows g and g + 8 of the operand.
template <int kTiles, int kApart>
struct CodeSums {
  float sums[kTiles][kHeadTiles][4] = {};

  // keep: of the block's heads, what sums so far are multiplied by.
  __device__ __forceinline__ void scale(const float* keep, int k) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      const float2 two = reinterpret_cast<const float2*>(keep + 8 * n)[k];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[t][n][i] *= i % 2 == 0 ? two.x : two.y;
      }
    }
  }

  // tile: the first one, of the part's rows.
  __device__ __forceinline__ void store(const PagePart& part, int tile, int lane) const {
    const int g = lane / 4, k = lane % 4, query_heads = part.params.query_heads(), codes = part.params.codes;
    const int first = part.code_slice * (kBlockCodes / kTileSize) + tile, tiles = codes / kTileSize;
    float* const to = part.params.sums + part.number * query_heads * codes;
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = part.first_head + 8 * n + 2 * k + i;
        if (head >= query_heads) break;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          if (first + t * kApart >= tiles) break;
          float* const row = to + (static_cast<int64_t>(head) * tiles + first + t * kApart) * kTileSize;
          reinterpret_cast<float2*>(row)[g] = {sums[t][n][i] * kSumUnit, sums[t][n][2 + i] * kSumUnit};
        }
      }
    }
  }
};

// Blocks for the float16 rows come first. They need no scores, and the launch that makes them, without which this one
// does not start, has waited for all before it.
__device__ __forceinline__ int row_parts(const CommVqParams& params) {
  return params.tables.kv_heads * params.row_blocks * params.count;
}
constexpr int kRowPartBytes = 4 * (RowPart::kFloats + RowPart::kStateFloats);

// A whole block of those.
__device__ __forceinline__ void run_row_part(const CommVqParams& params, uint8_t* shared) {
  const int rows = params.tables.kv_heads * params.row_blocks;
  float* const out = params.row_states + int64_t{blockIdx.x} * row_state_floats(params.tables.head_dim);
  auto* const floats = reinterpret_cast<float*>(shared);
  RowPart(params, blockIdx.x / rows, blockIdx.x % rows, floats).run(floats + RowPart::kFloats, out);
}

}  // namespace kvasir::cuda
