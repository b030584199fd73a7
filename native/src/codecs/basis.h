// The bases that a layer's rows may be stored in: for each kv head as many vectors as it has channels. A row x is the
// sum of its coefficients times the vectors; coefficients are x times the inverse.
#pragma once

#include <cstddef>
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
  // [head_dim][head_dim]: coefficients to vectors, and, for each channel of a row, what it adds to the coefficients.
  const float* vectors(int kv_head) const { return vectors_.data() + kv_head * size(); }
  const float* inverse(int kv_head) const { return inverse_.data() + kv_head * size(); }

  Codebook codebook() const override { return {this, static_cast<int64_t>(2 * vectors_.size())}; }
  void content(uint8_t (&digest)[32]) const override;

 private:
  Basis(int kv_heads, int head_dim) : kv_heads_(kv_heads), head_dim_(head_dim) {}
  size_t size() const { return static_cast<size_t>(head_dim_) * head_dim_; }

  const int kv_heads_, head_dim_;
  std::vector<float> vectors_, inverse_;
};

}  // namespace kvasir
