// The tables of key codebooks in the forms that encoding, decoding and training work with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/codebook.h"
#include "codecs/commvq/format.h"

namespace kvasir::commvq {

struct KeyShape {
  int kv_heads, head_dim;
  RopePairs pairs;
  int stages, entries;

  // Throws kInvalidArgument.
  void check() const;
  size_t width() const { return static_cast<size_t>(kv_heads) * head_dim; }
  size_t table_floats() const { return static_cast<size_t>(entries) * head_dim; }
  // Bits of a or b: 4, 5 or 6.
  int index_bits() const { return entries == 64 ? 6 : entries == 32 ? 5 : 4; }
  KeyPage page() const { return {kv_heads, stages, index_bits()}; }
};

// One table with what searches need of it.
class Stage {
 public:
  // vectors: [entries][head_dim], planar; copied.
  Stage(int entries, int head_dim, const float* vectors);

  const float* vector(int entry) const { return vectors_.data() + static_cast<size_t>(entry) * head_dim_; }
  const float* columns() const { return columns_.data(); }
  const float* cross() const { return cross_.data(); }

  // row += sign * (z_a + i z_b), planar.
  void add(int code, float sign, float* row) const;
  // Nearest centres of `count` planar rows; products is room for [count][2 * entries].
  void find(const CodebookKernels& kernels, const float* rows, int row_stride, int count, float* products, int* codes,
            float* scores) const;

 private:
  int entries_, head_dim_;
  std::vector<float> vectors_;  // [entries][head_dim]
  std::vector<float> columns_;  // [head_dim][2 * entries]: -2 z_a, then -2 i z_b
  std::vector<float> cross_;    // [entries][entries]: |z_a + i z_b|^2
};

// The float16 norm of a token, as bits, and as the number to divide by (1 where the norm is 0). row: [width].
uint16_t token_norm(const float* row, size_t width, float* divisor);

// 128 codes a | b << index_bits of one stage, and back.
void pack_codes(const int* codes, int bits, uint8_t* bytes);
void unpack_codes(const uint8_t* bytes, int bits, int* codes);

}  // namespace kvasir::commvq
