// The bases that a layer's rows may be stored in: for each kv head as many vectors as it has channels. A row x is the
// sum of its coefficients times the vectors; coefficients are x times the inverse, in whole numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codecs/page_format.h"

namespace kvasir {

class Basis : public PageModel {
 public:
  // vectors: [kv_heads][head_dim][head_dim], one vector after the other. They are rounded to float16. Throws
  // kInvalidArgument where they are not finite, or do not span the space well enough to be inverted.
  static std::shared_ptr<const Basis> make(const float* vectors, int kv_heads, int head_dim);

  int kv_heads() const { return kv_heads_; }
  int head_dim() const { return head_dim_; }
  // [head_dim][head_dim]: one vector for each coefficient.
  const float* vectors(int kv_head) const { return vectors_.data() + kv_head * size(); }
  // What a channel of a row adds to the coefficients, in numbers of which each coefficient has a unit of its own,
  // chosen such that sums over a row's numbers (row_numbers.h) do not leave 32 bits. Channels stand in pairs: channel i
  // and coefficient c at (i / 2 * head_dim + c) * 2 + i % 2.
  const int16_t* inverse(int kv_head) const { return inverse_.data() + kv_head * size(); }
  // [head_dim]: what 1 of such a sum is worth, a power of two.
  const float* units(int kv_head) const { return units_.data() + static_cast<size_t>(kv_head) * head_dim_; }

  Codebook codebook() const override { return {this, static_cast<int64_t>(2 * vectors_.size())}; }
  void content(uint8_t (&digest)[32]) const override;

 private:
  Basis(int kv_heads, int head_dim) : kv_heads_(kv_heads), head_dim_(head_dim) {}
  size_t size() const { return static_cast<size_t>(head_dim_) * head_dim_; }
  void add_inverse(const std::vector<double>& inverse);

  const int kv_heads_, head_dim_;
  std::vector<float> vectors_, units_;
  std::vector<int16_t> inverse_;
};

}  // namespace kvasir
