// A sequence as plain arrays: what a cache must hold after any series of appends, forks and cuts.
//
// Pages are sealed, decoded and reopened by the reference codecs; pages and blocks of 16-bit rows have identities, so
// that sharing can be counted.
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
  // Of kBlockTokens 16-bit rows: those of the sinks, then those of the window.
  std::vector<std::shared_ptr<int>> blocks() const {
    std::vector<std::shared_ptr<int>> all = blocks_[0];
    all.insert(all.end(), blocks_[1].begin(), blocks_[1].end());
    return all;
  }
  static constexpr int kBlockTokens = 16;

  void append(const float* keys, const float* values, int64_t tokens) {
    const float* sides[2] = {keys, values};
    for (int side = 0; side < 2; ++side) {
      for (int64_t i = 0; i < tokens * format_->row_size(); ++i) rows_[side].push_back(as_half(sides[side][i]));
    }
    const int64_t before[2] = {sink_rows(), window_rows()};
    length_ += tokens;
    int64_t pages = 0;
    for (; length_ - format_->sinks - format_->window >= (sealed() + 1) * kTokens; ++pages) seal();
    write_blocks(blocks_[0], before[0], sink_rows());
    for (int64_t i = 0; i < pages * kTokens / kBlockTokens && !blocks_[1].empty(); ++i) {
      blocks_[1].erase(blocks_[1].begin());
    }
    write_blocks(blocks_[1], std::max<int64_t>(0, before[1] - pages * kTokens), window_rows());
  }

  void truncate(int64_t length) {
    if (length >= length_) return;
    length_ = length;
    for (auto& side : rows_) side.resize(static_cast<size_t>(length) * format_->row_size());
    const int64_t kept = std::min(std::max<int64_t>(0, length - format_->sinks) / kTokens, sealed());
    const bool cut = kept < sealed();
    pages_.resize(static_cast<size_t>(kept));
    blocks_[0].resize(blocks_of(sink_rows()));
    if (cut) blocks_[1].clear();  // what was in them is in the future of the sequence no more
    blocks_[1].resize(blocks_of(window_rows()));
    for (auto& block : blocks_[1]) block = block ? block : std::make_shared<int>(0);
    if (!cut) return;
    // What is left of the page that was cut is 16-bit again.
    for (auto& side : rows_) {
      const size_t first = static_cast<size_t>((format_->sinks + kept * kTokens) * format_->row_size());
      for (size_t i = first; i < side.size(); ++i) side[i] = as_half(side[i]);
    }
  }

 private:
  static float as_half(float x) { return static_cast<float>(half_value(half_nearest(x))); }
  int64_t sealed() const { return static_cast<int64_t>(pages_.size()); }
  int64_t sink_rows() const { return std::min<int64_t>(length_, format_->sinks); }
  int64_t window_rows() const { return std::max<int64_t>(0, length_ - format_->sinks) - sealed() * kTokens; }
  static size_t blocks_of(int64_t rows) { return static_cast<size_t>((rows + kBlockTokens - 1) / kBlockTokens); }

  // Rows first .. end - 1 come: a block that another model holds, too, is copied before it is written.
  static void write_blocks(std::vector<std::shared_ptr<int>>& blocks, int64_t first, int64_t end) {
    if (first < end && first % kBlockTokens != 0) {
      auto& block = blocks[static_cast<size_t>(first / kBlockTokens)];
      if (block.use_count() > 1) block = std::make_shared<int>(0);
    }
    while (blocks.size() < blocks_of(end)) blocks.push_back(std::make_shared<int>(0));
  }

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
  std::vector<float> rows_[2];                   // [length][kv_heads][head_dim], as the cache must read them back
  std::vector<std::shared_ptr<int>> pages_;      // copies of the model (forks) share identities
  std::vector<std::shared_ptr<int>> blocks_[2];  // of sinks, of the window
};

}  // namespace reference
