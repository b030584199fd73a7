// A sequence as plain arrays: what a cache must hold after any series of appends, forks and cuts.
//
// Pages are sealed, decoded and reopened by the reference codecs; a page has an identity, so that sharing can be
// counted.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "reference/half.h"
#include "reference/page.h"

namespace reference {

class LayerModel {
 public:
  struct Format {
    int kv_heads;
    int head_dim;
    int sinks;
    int window;
    const ReferenceCodec* codecs[2];  // keys, values
    PageShape shapes[2];
    int row_size() const { return kv_heads * head_dim; }
  };

  explicit LayerModel(const Format* format) : format_(format) {}

  int64_t length() const { return length_; }
  const std::vector<float>& rows(int side) const { return rows_[side]; }
  const std::vector<std::shared_ptr<int>>& pages() const { return pages_; }

  void append(const float* keys, const float* values, int64_t tokens) {
    const float* sides[2] = {keys, values};
    for (int side = 0; side < 2; ++side) {
      for (int64_t i = 0; i < tokens * format_->row_size(); ++i) rows_[side].push_back(as_half(sides[side][i]));
    }
    length_ += tokens;
    while (length_ - format_->sinks - format_->window >= (sealed() + 1) * kTokens) seal();
  }

  void truncate(int64_t length) {
    if (length >= length_) return;
    length_ = length;
    for (auto& side : rows_) side.resize(static_cast<size_t>(length) * format_->row_size());
    const int64_t kept = std::min(std::max<int64_t>(0, length - format_->sinks) / kTokens, sealed());
    if (kept == sealed()) return;
    pages_.resize(static_cast<size_t>(kept));
    // What is left of the page that was cut is 16-bit again.
    for (auto& side : rows_) {
      const size_t first = static_cast<size_t>((format_->sinks + kept * kTokens) * format_->row_size());
      for (size_t i = first; i < side.size(); ++i) side[i] = as_half(side[i]);
    }
  }

 private:
  static float as_half(float x) { return static_cast<float>(half_value(half_nearest(x))); }
  int64_t sealed() const { return static_cast<int64_t>(pages_.size()); }

  void seal() {
    const int d = format_->head_dim;
    const size_t first = static_cast<size_t>(format_->sinks + sealed() * kTokens);
    for (int side = 0; side < 2; ++side) {
      for (int head = 0; head < format_->kv_heads; ++head) {
        const auto at = [&](int t) { return rows_[side].begin() + ((first + t) * format_->kv_heads + head) * d; };
        std::vector<float> rows;
        for (int t = 0; t < kTokens; ++t) rows.insert(rows.end(), at(t), at(t) + d);
        const std::vector<uint8_t> page = format_->codecs[side]->encode(format_->shapes[side], rows.data());
        const PageContent content = format_->codecs[side]->decode(format_->shapes[side], page.data());
        for (int t = 0; t < kTokens; ++t) std::copy_n(content.rows.begin() + t * d, d, at(t));
      }
    }
    pages_.push_back(std::make_shared<int>(0));
  }

  const Format* format_;
  int64_t length_ = 0;
  std::vector<float> rows_[2];               // [length][kv_heads][head_dim], as the cache must read them back
  std::vector<std::shared_ptr<int>> pages_;  // copies of the model (forks) share identities
};

}  // namespace reference
