// What labels add to a page: patterns, the vectors that residuals were taken against.
//
// score of a token += <query, its pattern>: the products of a segment's queries with the first kNearVectors patterns
// are computed once (begin) and looked up. output += sum over patterns of (weights of its tokens) * pattern: weights
// are summed by label with byte products, labels turned to ones and zeros by comparing four at a time
// (collect_weights), and multiplied with the patterns at the end of the segment (add_to_outputs). Patterns after those
// are multiplied page by page, a tile of 16 at a time, if some token of the page has one of them.
//
// A lane (g = lane / 4, h = lane % 4) holds heads h, h + 4, ... and vectors g and g + 8 of a tile, as mma has it.
#pragma once

#include "kernels/cuda/contract.cuh"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/pattern_layout.h"
#include "kernels/cuda/query.cuh"
#include "kernels/cuda/softmax.cuh"
#include "kernels/cuda/work.cuh"

namespace kvasir::cuda {

constexpr int kNearVectors = 64;
constexpr int kNearTiles = kNearVectors / kTileSize;

// Patterns of one side of one kv head.
struct PatternSide {
  const uint8_t* vectors;
  int fixed;
  int added;
  int first_page;

  __device__ __forceinline__ int count() const { return vectors == nullptr ? 0 : fixed + added; }
  // Label l > fixed of this page means vector l + shift - 1.
  __device__ __forceinline__ int shift(int page) const {
    const int newer = min(max(page - first_page + 1, 0), added);
    return max(newer - (kMaxVisible - fixed), 0);
  }
};

// In shared memory, one a warp.
template <int kTiles>
struct alignas(16) PatternScratch {
  float terms[kNearVectors + 1][4 * kTiles];  // by vector + 1; 0 is "none"
  float far_terms[kTileSize][4 * kTiles];     // of one tile
  float sums[kTiles][2 * kNearTiles][32];     // weights of vectors g + 8i, each lane its own
  float reference[kTiles][32];                // the maximum that they are relative to
  uint8_t labels[kBothLabelBytes];
  PatternSide keys, values;
};

template <int D, int kTiles>
struct PatternPlace {
  PatternScratch<kTiles>* scratch;

  // At the start of a segment.
  __device__ __forceinline__ void begin(const DecodeParams& params, const Work& work, int segment, int lane,
                                        const Query<D, kTiles>& query) const {
    const int sequence = segment / work.heads;
    const int kv_head = (segment - sequence * work.heads) / params.row_blocks;
    __syncwarp();  // the segment before may still be read
    if (lane == 0) {
      const DecodeSequence all = work.sequence(params, sequence);
      scratch->keys = side_of(all.key_patterns, kv_head);
      scratch->values = side_of(all.value_patterns, kv_head);
    }
    if (lane < 4 * kTiles) scratch->terms[0][lane] = 0.0f;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2 * kNearTiles; ++i) scratch->sums[n][i][lane] = 0.0f;
      scratch->reference[n][lane] = -1e38f;
    }
    __syncwarp();
    // Value vectors are needed at the end: a wait for memory less then.
    const int value_bytes = min(scratch->values.count(), kNearVectors) * 2 * D;
    for (int at = lane * 128; at < value_bytes; at += 32 * 128) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(scratch->values.vectors + at)));
    }
    const int tiles = min((scratch->keys.count() + kTileSize - 1) / kTileSize, kNearTiles);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) tile_terms(tile, lane, query, scratch->terms + 1 + tile * kTileSize);
    __syncwarp();
  }

  // The reader stands at the labels, and leaves after them.
  __device__ __forceinline__ void take_labels(Reader<D>& reader, int lane) const {
    __syncwarp();
    if (lane < 16) reinterpret_cast<uint4*>(scratch->labels)[lane] = reader.labels();
    reader.skip_parameters(kBothLabelBytes);
    __syncwarp();
  }

  __device__ __forceinline__ void add_to_scores(int page, int lane, const Query<D, kTiles>& query,
                                                float (&scores)[kTiles][16]) const {
    const uint4 four = reinterpret_cast<const uint4*>(scratch->labels)[lane / 4];
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
    const int shift = scratch->keys.shift(page);
    uint32_t far = 0;  // some label may stand for a vector that is not near
#pragma unroll
    for (int i = 0; i < 4; ++i) far |= above(words[i], kNearVectors);
    if (!__any_sync(0xffffffffu, far != 0 || shift > 0)) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float* term = scratch->terms[words[i / 4] >> 8 * (i % 4) & 255] + lane % 4;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) scores[n][i] += term[4 * n];
      }
      return;
    }
    add_far_to_scores(shift, lane, query, scores);
  }

  // Before the page's residuals join the state. Weights are at most 1.
  __device__ __forceinline__ void collect_weights(int page, int lane, const float (&weights)[kTiles][16],
                                                  Joining<kTiles>& joining, SoftmaxState<D, kTiles>& state) const {
    const int count = scratch->values.count();
    if (count == 0) return;
    uint32_t fragments[kTiles][8];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 16; i += 2) {
        fragments[n][i / 2] = quantised_pair<false>(weights[n][i], weights[n][i + 1], kQuantum<false>);
      }
    }
    float keep[kTiles], gain[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      keep[n] = exp2_approx(scratch->reference[n][lane] - state.max[n]);
      scratch->reference[n][lane] = state.max[n];
      gain[n] = joining.gain[n] * (1.0f / (kQuantum<false> * kMatch));
    }
    const int shift = scratch->values.shift(page);
    const int tiles = (count + kTileSize - 1) / kTileSize;
#pragma unroll 1
    for (int tile = 0; tile < min(tiles, kNearTiles); ++tile) {
      float sums[kTiles][2];
      tile_weights(tile, shift, lane, fragments, sums);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float* first = &scratch->sums[n][2 * tile][lane];
        first[0] = fmaf(first[0], keep[n], sums[n][0] * gain[n]);
        first[32] = fmaf(first[32], keep[n], sums[n][1] * gain[n]);
      }
    }
    if (tiles <= kNearTiles) return;
    state.rescale(joining);
    // Far vectors: those that this page can see begin with the first that its labels above `fixed` mean.
    const int fixed = scratch->values.fixed;
    const int first = fixed > kNearVectors ? kNearTiles : max((fixed + shift) / kTileSize, kNearTiles);
#pragma unroll 1
    for (int tile = first; tile < tiles && tile * kTileSize < kMaxVisible + shift; ++tile) {
      float sums[kTiles][2];
      tile_weights(tile, shift, lane, fragments, sums);
      bool some = false;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) some = some || sums[n][0] != 0.0f || sums[n][1] != 0.0f;
      if (!__any_sync(0xffffffffu, some)) continue;
      float factors[kTiles][2];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {  // at most 128 weights of at most 1
        factors[n][0] = sums[n][0] * (1.0f / (kQuantum<false> * kMatch));
        factors[n][1] = sums[n][1] * (1.0f / (kQuantum<false> * kMatch));
      }
      add_tile(tile, lane, factors, joining.gain, state);
    }
  }

  // At the end of a segment, when the state is complete.
  __device__ __forceinline__ void add_to_outputs(int lane, SoftmaxState<D, kTiles>& state) const {
    const int tiles = min((scratch->values.count() + kTileSize - 1) / kTileSize, kNearTiles);
    float scale[kTiles];  // makes sums a share of all weights, which float16 can hold
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      scale[n] = __fdividef(exp2_approx(scratch->reference[n][lane] - state.max[n]), state.sum[n]);
    }
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      float factors[kTiles][2];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        factors[n][0] = scratch->sums[n][2 * tile][lane] * scale[n];
        factors[n][1] = scratch->sums[n][2 * tile + 1][lane] * scale[n];
      }
      add_tile(tile, lane, factors, state.sum, state);
    }
  }

 private:
  static constexpr float kMatch = 128.0f;  // of a byte that says "equal"

  __device__ static PatternSide side_of(const PatternTable& table, int kv_head) {
    return {table.vectors == nullptr ? nullptr : table.vectors + kv_head * table.head_stride, table.fixed, table.added,
            table.first_page};
  }

  // Some bytes of which are set where the byte of `word` is above `limit`, 0..127.
  __device__ __forceinline__ static uint32_t above(uint32_t word, int limit) {
    const uint32_t add = static_cast<uint32_t>(127 - limit) * 0x01010101u;
    return (((word & 0x7f7f7f7fu) + add) | word) & 0x80808080u;
  }

  __device__ __forceinline__ static uint4 group_of(const uint8_t* vectors, int tile, int group, int lane) {
    return __ldg(reinterpret_cast<const uint4*>(vectors + static_cast<int64_t>(tile) * (32 * D) + group * kGroupBytes) +
                 lane);
  }

  // As add_to_scores, for labels that may stand for far vectors. Queries and products go through local memory, and
  // loops are not unrolled: this must not cost the other pages registers.
  __device__ __forceinline__ void add_far_to_scores(int shift, int lane, const Query<D, kTiles>& query,
                                                    float (&scores)[kTiles][16]) const {
    uint32_t queries[D / 8 * kTiles];  // split_halves of them
    float terms[16 * kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < D / 8; ++i) queries[i * kTiles + n] = split_halves(query.values[n][i]);
    }
    const uint8_t* labels = scratch->labels + lane / 4 * 16;
    const int fixed = scratch->keys.fixed;
    auto entry_of = [&](int i) {  // vector + 1, or 0
      const int label = labels[i];
      return label <= fixed ? label : label + shift;
    };
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const int entry = entry_of(i);
      const float* term = scratch->terms[entry <= kNearVectors ? entry : 0] + lane % 4;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) terms[i * kTiles + n] = term[4 * n];
    }
    int done = kNearVectors;  // entries up to this one are
#pragma unroll 1
    while (true) {
      uint32_t lowest = 0xffffffffu;
#pragma unroll 1
      for (int i = 0; i < 16; ++i) {
        const int entry = entry_of(i);
        if (entry > done) lowest = min(lowest, static_cast<uint32_t>(entry));
      }
      lowest = __reduce_min_sync(0xffffffffu, lowest);
      if (lowest == 0xffffffffu) break;
      const int tile = static_cast<int>(lowest - 1) / kTileSize;
      float sum[kTiles][4] = {};
      constexpr int kAtOnce = D / 16 % 4 == 0 ? 4 : 3;  // loads that do not wait for each other
#pragma unroll 1
      for (int first = 0; first < D / 16; first += kAtOnce) {
        uint4 words[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) words[i] = group_of(scratch->keys.vectors, tile, first + i, lane);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const uint32_t* pair = queries + 2 * (first + i) * kTiles;
#pragma unroll
          for (int n = 0; n < kTiles; ++n) mma_halves(sum[n], words[i], pair[n], pair[kTiles + n]);
        }
      }
      store_terms(sum, lane, query, scratch->far_terms);
      __syncwarp();
#pragma unroll 1
      for (int i = 0; i < 16; ++i) {
        const int row = entry_of(i) - 1 - tile * kTileSize;
        if (row < 0 || row >= kTileSize) continue;
        const float* term = scratch->far_terms[row] + lane % 4;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) terms[i * kTiles + n] = term[4 * n];
      }
      __syncwarp();
      done = (tile + 1) * kTileSize;
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 16; ++i) scores[n][i] += terms[i * kTiles + n];
    }
  }

  // Products of the queries with the key vectors of a tile.
  __device__ __forceinline__ void tile_terms(int tile, int lane, const Query<D, kTiles>& query,
                                             float (*terms)[4 * kTiles]) const {
    float sum[kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const uint4 words = group_of(scratch->keys.vectors, tile, i, lane);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        mma_halves(sum[n], words, split_halves(query.values[n][2 * i]), split_halves(query.values[n][2 * i + 1]));
      }
    }
    store_terms(sum, lane, query, terms);
  }

  __device__ __forceinline__ static void store_terms(const float (&sum)[kTiles][4], int lane,
                                                     const Query<D, kTiles>& query, float (*terms)[4 * kTiles]) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      terms[lane / 4][4 * n + lane % 4] = (sum[n][0] + sum[n][1]) * query.scale[n];
      terms[lane / 4 + 8][4 * n + lane % 4] = (sum[n][2] + sum[n][3]) * query.scale[n];
    }
  }

  // Weights of the page's tokens, summed by value vector of a tile: quantised, times kMatch.
  __device__ __forceinline__ void tile_weights(int tile, int shift, int lane, const uint32_t (&fragments)[kTiles][8],
                                               float (&sums)[kTiles][2]) const {
    const int fixed = scratch->values.fixed;
    uint32_t wanted[2];  // the label of each row's vector, in every byte
    bool seen[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int vector = tile * kTileSize + lane / 4 + 8 * r;
      const int label = vector < fixed ? vector + 1 : vector + 1 - shift;
      seen[r] = (vector < fixed || label > fixed) && label <= kMaxVisible;
      wanted[r] = (label & 255) * 0x01010101u;
    }
    const uint4* labels = reinterpret_cast<const uint4*>(scratch->labels + kLabelBytes) + lane % 4 * 2;
    const uint4 low = labels[0], high = labels[1];
    const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    int c[kTiles][4] = {};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t a[4] = {equal_bytes(words[2 * step], wanted[0]), equal_bytes(words[2 * step], wanted[1]),
                             equal_bytes(words[2 * step + 1], wanted[0]), equal_bytes(words[2 * step + 1], wanted[1])};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) mma_bytes<false>(c[n], a, fragments[n][2 * step], fragments[n][2 * step + 1]);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      sums[n][0] = seen[0] ? joined(c[n][0], c[n][1]) : 0.0f;
      sums[n][1] = seen[1] ? joined(c[n][2], c[n][3]) : 0.0f;
    }
  }

  // kMatch in the bytes that are equal, 0 in the others.
  __device__ __forceinline__ static uint32_t equal_bytes(uint32_t a, uint32_t b) {
    const uint32_t different = a ^ b;
    return ~(((different & 0x7f7f7f7fu) + 0x7f7f7f7fu) | different) & 0x80808080u;
  }

  // output += gain * sum over the value vectors of a tile of factor * vector.
  __device__ __forceinline__ void add_tile(int tile, int lane, const float (&factors)[kTiles][2],
                                           const float (&gain)[kTiles], SoftmaxState<D, kTiles>& state) const {
    const uint8_t* vectors = scratch->values.vectors;
    uint32_t fragments[kTiles][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      fragments[n][0] = split_halves(factors[n][0]);
      fragments[n][1] = split_halves(factors[n][1]);
    }
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const uint4 words = group_of(vectors, tile, i, lane);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float c[4] = {};
        mma_halves(c, words, fragments[n][0], fragments[n][1]);
        state.output[n][2 * i] = fmaf(c[0] + c[1], gain[n], state.output[n][2 * i]);
        state.output[n][2 * i + 1] = fmaf(c[2] + c[3], gain[n], state.output[n][2 * i + 1]);
      }
    }
  }
};

}  // namespace kvasir::cuda
