// Matrix products, as verbs that a backend supplies. matrix.cc cuts a product into blocks and spreads them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvasir/model.h"

namespace kvasir {

// A part of a row of activations as 8-bit codes, for products with weights in blocks: value = scale * code, where
// kScaleGroup neighbours share a scale. As long as the longest block, and a whole, odd number of cache lines, so that
// rows spread over all of a cache.
constexpr int kCodedDepth = 256;
constexpr int kScaleGroup = 32;
constexpr int kSumGroup = 16;
struct alignas(64) CodedPart {
  int8_t codes[kCodedDepth];                 // -127..127
  float scales[kCodedDepth / kScaleGroup];   // of groups
  float sums[kCodedDepth / kSumGroup];       // of values, for weights with minimums
  int32_t offsets[kCodedDepth / kSumGroup];  // -128 times the sum of codes: what weights + 128 need
};

// Most rows of a block whose activations are not float32, and rows beyond the last that may be read, whatever they
// hold.
constexpr int kCodedRows = 512;
constexpr int kSpareRows = 15;

// Rows of activations as pairs of bfloat16, the nearest to each number and the nearest to what is left: off by at most
// 2^-16 of it, or 2^-15 where it would round to infinity. They lie as tiles of 16 rows and kPairDepth numbers of each,
// [rows / 16][steps of the depth][2][16 rows][kPairDepth], at a whole cache line; what is beyond the depth is 0.
constexpr int kPairDepth = 32;
constexpr int kPairRows = 16;
constexpr int64_t pair_steps(int64_t depth) { return (depth - 1) / kPairDepth + 1; }
// Where a row begins, in words of 16 bits.
constexpr int64_t pair_offset(int64_t row, int64_t depth) {
  return (row / kPairRows * pair_steps(depth) * 2 * kPairRows + row % kPairRows) * kPairDepth;
}

// Part of out = a * b^T + bias: some rows of a with some rows of b, over the whole depth.
struct MatrixBlock {
  const float* a;          // [rows][depth], for weights that are floats
  const CodedPart* coded;  // the same for weights in blocks: [parts of the depth][rows], and kSpareRows
  int64_t rows;
  const uint8_t* b;  // [columns][depth] in their type
  WeightType type;
  int64_t row_bytes;  // of b
  int64_t columns;
  int64_t depth;
  const float* bias;  // [columns] or null
  float* out;         // [rows][stride], of which `columns` are written
  int64_t stride;
  const uint16_t* pairs = nullptr;  // the rows of a as pairs, for pair_product
};

struct MatrixKernels {
  // For weights that are floats.
  void (*product)(const MatrixBlock& block);
  // For weights in blocks. An element is one chain of float32 sums over the groups of the depth, each of one exact
  // integer product: so it depends on nothing but its own row and column.
  void (*block_product)(const MatrixBlock& block);
  // Codes of `depth` activations, a multiple of kScaleGroup. A group with a number that is not finite has the scale
  // NaN; one whose numbers are all below 2^-100 is 0.
  void (*encode)(const float* values, int depth, CodedPart* out);
  // Weights begin .. begin + count of a row as float32, both at the borders of blocks.
  void (*widen)(WeightType type, const uint8_t* row, int64_t begin, int count, float* out);
  // out[i] = silu(gate[i]) * up[i]
  void (*silu_product)(const float* gate, const float* up, size_t count, float* out);
  // For weights in bfloat16 with activations as pairs of it; null where a level has no instructions for that.
  void (*pair_product)(const MatrixBlock& block);
  // A row of pairs, from where it begins.
  void (*split)(const float* values, int64_t depth, uint16_t* out);
};

// The whole product, out = a * b^T + bias, in blocks over the library's threads. Checks its arguments. With `pairs`
// activations may become pairs of bfloat16 where weights are bfloat16.
void run_product(const float* a, const uint8_t* b, WeightType type, const float* bias, int64_t rows, int64_t columns,
                 int64_t depth, bool pairs, float* out);

// row_bytes of `depth` weights. Throws kInvalidArgument for an unknown type or a depth that is not whole blocks.
int64_t checked_row_bytes(WeightType type, int64_t depth);

}  // namespace kvasir
