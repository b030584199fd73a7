// What labels add to a page: the vectors that residuals were taken against.
//
// score of a token += <query, its vector>: the products of a segment's queries with the first kNearVectors vectors
// are computed once (begin) and looked up. output += sum over vectors of (weights of its tokens) * vector: weights
// are summed by label with byte products, labels turned to ones and zeros by comparing four at a time
// (collect_weights), and multiplied with the vectors at the end of the segment (add_to_outputs).
//
// Where there are more vectors, products with all of them come from a launch before (label_terms.cuh) and are looked
// up in VectorRoom, and sums of weights are kept there.
//
// Kernels for pages of 2 bits and four query heads add weights up by label instead (label_counts.cuh).
//
// A lane (g = lane / 4, h = lane % 4) holds heads h, h + 4, ... and vectors g and g + 8 of a tile, as mma has it.
#pragma once

#include <cmath>

#include "kernels/cuda/attend/code_products.cuh"
#include "kernels/cuda/attend/folded_factors.cuh"
#include "kernels/cuda/attend/query.cuh"
#include "kernels/cuda/attend/softmax.cuh"
#include "kernels/cuda/attend/work.cuh"
#include "kernels/cuda/layout/labels.h"

namespace kvasir::cuda {

constexpr int kNearTiles = kNearVectors / kTileSize;

// The vectors of one side of one kv head.
struct LabelSide {
  const uint8_t* vectors;
  int fixed;
  int added;
  int first_page;

  __device__ static LabelSide of(const VectorTable& table, int kv_head) {
    return {table.vectors == nullptr ? nullptr : table.vectors + kv_head * table.head_stride, table.fixed, table.added,
            table.first_page};
  }
  __device__ __forceinline__ int count() const { return vectors == nullptr ? 0 : fixed + added; }
  __device__ __forceinline__ bool far() const { return count() > kNearVectors; }
  // Whether there are far ones and no place for them.
  __device__ __forceinline__ bool outgrew(const VectorRoom& room) const { return far() && count() > room.vectors; }
  // Vectors up to the newest that this page can refer to.
  __device__ __forceinline__ int known(int page) const { return fixed + min(max(page - first_page + 1, 0), added); }
  // Label l > fixed of this page means vector l + shift - 1.
  __device__ __forceinline__ int shift(int page) const { return max(known(page) - kMaxVisible, 0); }
};

template <int kTiles>
__device__ __forceinline__ float (*segment_terms(const VectorRoom& room, int segment))[4 * kTiles] {
  return reinterpret_cast<float(*)[4 * kTiles]>(room.terms) + static_cast<int64_t>(segment) * (room.vectors + 1);
}

// Group `group` of a tile: 16 vectors, 16 channels.
template <int D>
__device__ __forceinline__ uint4 vector_group(const uint8_t* vectors, int tile, int group, int lane) {
  return __ldg(reinterpret_cast<const uint4*>(vectors + static_cast<int64_t>(tile) * (32 * D) + group * kGroupBytes) +
               lane);
}

// A tile of vectors, on its way.
template <int D>
struct VectorTile {
  uint4 words[D / 16];

  __device__ __forceinline__ void load(const uint8_t* vectors, int tile, int lane) {
#pragma unroll
    for (int i = 0; i < D / 16; ++i) words[i] = vector_group<D>(vectors, tile, i, lane);
  }
};

// Products of the queries with the key vectors of a tile.
template <int D, int kTiles>
__device__ __forceinline__ void tile_terms(const VectorTile<D>& vectors, int lane, const Query<D, kTiles>& query,
                                           float (*terms)[4 * kTiles]) {
  float sum[kTiles][4] = {};
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      mma_halves(sum[n], vectors.words[i], split_halves(query.values[n][2 * i]),
                 split_halves(query.values[n][2 * i + 1]));
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    terms[lane / 4][4 * n + lane % 4] = (sum[n][0] + sum[n][1]) * query.scale[n];
    terms[lane / 4 + 8][4 * n + lane % 4] = (sum[n][2] + sum[n][3]) * query.scale[n];
  }
}

// output += gain * sum over the value vectors of a tile of factor * vector.
template <int D, int kTiles>
__device__ __forceinline__ void add_vectors(const uint8_t* vectors, int tile, int lane,
                                            const float (&factors)[kTiles][2], const float (&gain)[kTiles],
                                            SoftmaxState<D, kTiles>& state) {
  uint32_t fragments[kTiles][2];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    fragments[n][0] = split_halves(factors[n][0]);
    fragments[n][1] = split_halves(factors[n][1]);
  }
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    const uint4 words = vector_group<D>(vectors, tile, i, lane);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float c[4] = {};
      mma_halves(c, words, fragments[n][0], fragments[n][1]);
      state.output[n][2 * i] = fmaf(c[0] + c[1], gain[n], state.output[n][2 * i]);
      state.output[n][2 * i + 1] = fmaf(c[2] + c[3], gain[n], state.output[n][2 * i + 1]);
    }
  }
}

// Sums of weights by label as whole numbers (label_counts.cuh). In shared memory, one a warp.
template <int kRows_>
struct alignas(16) LabelCounts {
  static constexpr int kRows = kRows_;
  int sums[kRows + 1][4];  // by label, of fixed vectors; `base` vectors later of the others; 0: tokens without a vector
  float unit[4];           // by head: what a weight of 1 counts, a power of two
  float reference[4];      // that weights are relative to
  int base;                // -1 where there are no sums yet
  int left;                // sums that the block has to multiply

  __device__ __forceinline__ float sum_of(int vector, int fixed, int head) const {
    const int row = vector < fixed ? vector + 1 : vector + 1 - base;
    const bool has = (vector < fixed || row > fixed) && row <= kRows;
    const float sum = __int2float_rn(sums[has ? row : 0][head]);  // without a branch: loads are on their way together
    return has ? sum : 0.0f;
  }
};
using NearCounts = LabelCounts<kNearVectors>;
using FarCounts = LabelCounts<288>;  // all that a page sees, and what the pages after it add

// Tiles of vectors that have sums: those of the fixed vectors, then those of the others.
struct CountedTiles {
  int fixed_end, begin, end;

  __device__ CountedTiles(const LabelSide& values, int first_base, int last_base, int rows)
      : fixed_end((values.fixed + kTileSize - 1) / kTileSize),
        begin(max((values.fixed + first_base) / kTileSize, fixed_end)),
        end((min(last_base + rows, values.count()) + kTileSize - 1) / kTileSize) {}
  __device__ int count() const { return fixed_end + max(end - begin, 0); }
  __device__ int at(int i) const { return i < fixed_end ? i : begin + i - fixed_end; }
};

// In shared memory, one a warp.
template <int kTiles>
struct alignas(16) LabelScratch {
  float terms[kNearVectors + 1][4 * kTiles];  // by vector + 1; 0 is "none"
  union {
    struct {
      float sums[kTiles][2 * kNearTiles][32];  // weights of vectors g + 8i, each lane its own
      float reference[kTiles][32];             // the maximum that they are relative to
    };
    NearCounts counts;  // in kernels that count
  };
  uint8_t labels[kBothLabelBytes];
  LabelSide keys, values;
  // Parts of VectorRoom, null where there are no far vectors.
  const float (*all_terms)[4 * kTiles];  // by vector + 1
  float (*far_sums)[kTiles][2][32];      // by tile: weights of vectors g and g + 8
  int far_begin, far_end;                // tiles that have sums
  bool outgrown;                         // tables have outgrown the room: no label counts, outputs are not numbers
};

// The term of a key's label of a page. kFar: of kernels for far vectors, where some segments may have near ones alone.
template <bool kFar>
class LabelTerms {
 public:
  __device__ LabelTerms(const LabelScratch<1>& scratch, int page, int lane)
      : near_(reinterpret_cast<const uint8_t*>(scratch.terms) + 4 * (lane % 4)), far_(nullptr) {
    if (!kFar || scratch.all_terms == nullptr) return;
    far_ = *scratch.all_terms + lane % 4;
    shift_ = scratch.keys.shift(page);
    fixed_ = scratch.keys.fixed;
  }
  __device__ __forceinline__ float at(uint32_t label) const {
    if (!kFar || far_ == nullptr) return *reinterpret_cast<const float*>(near_ + 16 * label);
    return __ldg(far_ + 4 * (label + (static_cast<int>(label) > fixed_ ? shift_ : 0)));
  }

 private:
  const uint8_t* near_;
  const float* far_;
  int fixed_ = 0;
  uint32_t shift_ = 0;
};

// Whose vectors a segment has.
struct SegmentPlace {
  int sequence, kv_head;

  __device__ __forceinline__ static SegmentPlace of(const AttendParams& params, const Work& work, int segment) {
    const int sequence = segment / work.heads;
    return {sequence, (segment - sequence * work.heads) / params.row_blocks};
  }
};

template <int D, int kTiles>
struct LabelPlace {
  LabelScratch<kTiles>* scratch;

  // Asks for a line of the vectors of a segment, which are near and few: the warps of a block ask for all of them,
  // while they wait for queries. The number is of no meaning, but must be waited for.
  __device__ __forceinline__ static uint32_t touch(const AttendParams& params, const Work& work, int segment,
                                                   int lane) {
    const auto [sequence, kv_head] = SegmentPlace::of(params, work, segment);
    const DeviceSequence all = work.sequence(params, sequence);
    const LabelSide keys = LabelSide::of(all.key_vectors, kv_head), values = LabelSide::of(all.value_vectors, kv_head);
    const int key_lines = min(keys.count(), kNearVectors) * D / 64, line = lane * params.consumers + threadIdx.x / 32;
    const bool of_keys = line < key_lines, of_values = line - key_lines < min(values.count(), kNearVectors) * D / 64;
    const uint8_t* const from = of_keys ? keys.vectors + 128 * line : values.vectors + 128 * (line - key_lines);
    return of_keys || of_values ? __ldg(reinterpret_cast<const uint32_t*>(from)) : 0;
  }

  // At the start of a segment. kCounts: weights are summed otherwise (label_counts.cuh).
  template <bool kCounts>
  __device__ __forceinline__ void begin(const AttendParams& params, const Work& work, int segment, int lane,
                                        const Query<D, kTiles>& query) const {
    const auto [sequence, kv_head] = SegmentPlace::of(params, work, segment);
    __syncwarp();  // the segment before may still be read
    if (lane == 0) {
      const DeviceSequence all = work.sequence(params, sequence);
      scratch->keys = LabelSide::of(all.key_vectors, kv_head);
      scratch->values = LabelSide::of(all.value_vectors, kv_head);
      const VectorRoom& room = params.room;
      const int64_t warp = static_cast<int64_t>(blockIdx.x) * params.consumers + threadIdx.x / 32;
      auto* const sums = reinterpret_cast<float(*)[kTiles][2][32]>(room.sums) + warp * (room.vectors / kTileSize);
      const bool outgrown = scratch->keys.outgrew(room) || scratch->values.outgrew(room);
      scratch->outgrown = outgrown;
      scratch->all_terms = scratch->keys.far() && !outgrown ? segment_terms<kTiles>(room, segment) : nullptr;
      scratch->far_sums = scratch->values.far() && !outgrown ? sums : nullptr;
      scratch->far_begin = scratch->far_end = 0;
    }
    if (lane < 4 * kTiles) scratch->terms[0][lane] = 0.0f;
    if constexpr (!kCounts) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2 * kNearTiles; ++i) scratch->sums[n][i][lane] = 0.0f;
        scratch->reference[n][lane] = kNothing;
      }
    }
    __syncwarp();
    const uint8_t* const vectors = scratch->keys.vectors;
    const int near = min((scratch->keys.count() + kTileSize - 1) / kTileSize, kNearTiles);
    const int tiles = scratch->all_terms != nullptr ? 0 : near;
    if constexpr (kCounts && D <= 128) {  // two at a time, since they come from far away
#pragma unroll 1
      for (int tile = 0; tile < tiles; tile += 2) {
        const int next = min(tile + 1, tiles - 1);
        VectorTile<D> first, second;
        first.load(vectors, tile, lane);
        second.load(vectors, next, lane);
        tile_terms(first, lane, query, scratch->terms + 1 + tile * kTileSize);
        tile_terms(second, lane, query, scratch->terms + 1 + next * kTileSize);
      }
    } else {
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        VectorTile<D> one;
        one.load(vectors, tile, lane);
        tile_terms(one, lane, query, scratch->terms + 1 + tile * kTileSize);
      }
    }
    __syncwarp();
  }

  // The reader stands at the labels, and leaves after them.
  __device__ __forceinline__ void take_labels(Reader<D>& reader, int lane) const {
    __syncwarp();
    if (lane < 16) {
      const uint4 labels = reader.labels();
      reinterpret_cast<uint4*>(scratch->labels)[lane] = scratch->outgrown ? make_uint4(0, 0, 0, 0) : labels;
    }
    reader.skip_parameters(kBothLabelBytes);
    __syncwarp();
  }

  __device__ __forceinline__ void add_to_scores(int page, int lane, float (&scores)[kTiles][16]) const {
    const uint4 four = reinterpret_cast<const uint4*>(scratch->labels)[lane / 4];
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
    if (scratch->all_terms == nullptr) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float* term = scratch->terms[words[i / 4] >> 8 * (i % 4) & 255] + lane % 4;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) scores[n][i] += term[4 * n];
      }
      return;
    }
    const float* const terms = *scratch->all_terms + lane % 4;
    const int shift = scratch->keys.shift(page), fixed = scratch->keys.fixed;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int label = static_cast<int>(words[i / 4] >> 8 * (i % 4) & 255);
      const float* const term = terms + 4 * kTiles * (label <= fixed ? label : label + shift);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) scores[n][i] += term[4 * n];
    }
  }

  // Before the page's residuals join the state. Weights are at most 1, and relative to its reference times their gain.
  __device__ __forceinline__ void collect_weights(int page, int lane, const float (&weights)[kTiles][16],
                                                  const float (&gains)[kTiles],
                                                  const SoftmaxState<D, kTiles>& state) const {
    if (scratch->values.count() == 0) return;
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
      keep[n] = move_reference(scratch->reference[n][lane], state.max[n]);
      gain[n] = gains[n] * (1.0f / (kQuantum<false> * kMatch));
    }
    const int shift = scratch->values.shift(page);
    const int tiles = (scratch->values.count() + kTileSize - 1) / kTileSize;
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
    if (scratch->far_sums == nullptr) return;
    // Far vectors: those that this page can see begin with the first that its labels above `fixed` mean. Pages of a
    // segment come in order, so that tiles do too.
    const int fixed = scratch->values.fixed, summed = scratch->far_end;
    const int first = fixed > kNearVectors ? kNearTiles : max((fixed + shift) / kTileSize, kNearTiles);
    const int begin = summed > 0 ? scratch->far_begin : first;
    const int end = (scratch->values.known(page) + kTileSize - 1) / kTileSize;
    if (begin >= end) return;
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
      float sums[kTiles][2];
      tile_weights(tile, shift, lane, fragments, sums);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float& sum = scratch->far_sums[tile][n][r][lane];
          sum = fmaf(tile < summed ? sum : 0.0f, keep[n], sums[n][r] * gain[n]);
        }
      }
    }
    __syncwarp();
    if (lane == 0) {
      scratch->far_begin = begin;
      scratch->far_end = end;
    }
  }

  // At the end of a segment, when the state is complete.
  __device__ __forceinline__ void add_to_outputs(int lane, SoftmaxState<D, kTiles>& state) const {
    const int tiles = min((scratch->values.count() + kTileSize - 1) / kTileSize, kNearTiles);
    float scale[kTiles];  // makes sums a share of all weights, which float16 can hold
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (scratch->outgrown) state.sum[n] = NAN;
      scale[n] = __fdividef(weight_of(scratch->reference[n][lane], state.max[n]), state.sum[n]);
    }
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      float factors[kTiles][2];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        factors[n][0] = scratch->sums[n][2 * tile][lane] * scale[n];
        factors[n][1] = scratch->sums[n][2 * tile + 1][lane] * scale[n];
      }
      add_vectors<D, kTiles>(scratch->values.vectors, tile, lane, factors, state.sum, state);
    }
    if (scratch->far_sums == nullptr) return;
    __syncwarp();
    const int end = scratch->far_end;
#pragma unroll 1
    for (int tile = scratch->far_begin; tile < end; ++tile) {
      float factors[kTiles][2];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        factors[n][0] = scratch->far_sums[tile][n][0][lane] * scale[n];
        factors[n][1] = scratch->far_sums[tile][n][1][lane] * scale[n];
      }
      add_vectors<D, kTiles>(scratch->values.vectors, tile, lane, factors, state.sum, state);
    }
  }

 private:
  static constexpr float kMatch = 128.0f;  // of a byte that says "equal"

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
};

}  // namespace kvasir::cuda
