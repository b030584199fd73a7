#include "engine/cuda/cuda_append.h"

#include <algorithm>

#include "engine/cuda/caller_memory.h"

namespace kvasir::cuda {

int64_t CudaAppend::new_sinks() const { return std::clamp<int64_t>(plan_.sinks - before_.length, 0, tokens_); }

size_t CudaAppend::side_halves() const {
  return static_cast<size_t>(staged_.staging.rows) * plan_.attention.kv_heads * plan_.attention.head_dim;
}

void CudaAppend::open(const SequenceView& before, int64_t pages) {
  before_ = before;
  staged_.count = pages;
  if (pages == 0) return;
  const CurrentDevice current(kDevice);
  const int64_t sinks = new_sinks(), new_rows = present() > 0 ? tokens_ - sinks : 0;
  int64_t rows = before.window + new_rows;
  if (layer_.family().seals_input()) {
    const int64_t begun = (before.window + kPageTokens - 1) / kPageTokens;  // pages of which the window has rows
    rows = std::min<int64_t>(pages, begun) * kPageTokens;
  }
  const int64_t old_rows = std::min<int64_t>(before.window, rows);
  Staging& staging = staged_.staging;
  staging.rows = rows;
  staged_.input = &input_;
  staged_.first_token = begin_ + sinks + rows - before.window;
  if (rows == 0) return;
  const cudaStream_t stream = layer_.queue().stream;
  staging_memory_ = layer_.queue().take(2 * side_halves() * sizeof(uint16_t));
  staging.sides[0] = staging_memory_.as<uint16_t>();
  staging.sides[1] = staging.sides[0] + side_halves();
  if (old_rows > 0) {
    check(gather_rows(layer_.row_shape(), row_list(before.window_blocks), 0, old_rows, staging, 0, stream),
          "gathering the window");
  }
  if (rows == old_rows) return;
  check(stage_rows(layer_.row_shape(), input_, begin_ + sinks, rows - old_rows, staging, old_rows, stream),
        "staging rows");
}

void CudaAppend::rows(Side side, int kv_head, int64_t first, int64_t count, float* out, int stride) const {
  std::call_once(downloaded_, [this] {
    const CurrentDevice current(kDevice);
    halves_.resize(2 * side_halves());
    layer_.queue().download(halves_.data(), staging_memory_.as<void>(), halves_.size() * sizeof(uint16_t),
                            "reading rows back");
  });
  const auto d = static_cast<size_t>(plan_.attention.head_dim);
  const int64_t begin = (before_.first_page + before_.page_count) * kPageTokens;
  const uint16_t* head = halves_.data() + (side == Side::kValues ? side_halves() : 0) +
                         static_cast<size_t>(kv_head) * staged_.staging.rows * d;
  for (int64_t i = 0; i < count; ++i) {
    plan_.attention.rows->from_half(head + static_cast<size_t>(first + i - begin) * d, d,
                                    out + static_cast<size_t>(i) * stride);
  }
}

bool CudaAppend::lay_out(const uint8_t* sums, PartHeads& heads) {
  const CurrentDevice current(kDevice);
  return layer_.family().lay_out(staged_, sums, heads);
}

bool CudaAppend::grow(Side side, SealInput& input, SideTable& table, LayerState* state) {
  const CurrentDevice current(kDevice);
  return layer_.family().grow(staged_, side, input, table, static_cast<CudaLayerState&>(*state));
}

void CudaAppend::seal(const std::vector<NewPage>& pages, const PartHeads& heads, const SideTable (&tables)[2],
                      LayerState* state) {
  const CurrentDevice current(kDevice);
  const auto encode_here = [&](int64_t page, Side side, int kv_head, uint8_t* out) {
    const int index = static_cast<int>(side);
    encode_part(pages[static_cast<size_t>(page)], side, kv_head, heads.head(plan_.attention, page, index, kv_head),
                tables[index], out);
  };
  layer_.family().seal(staged_, {pages, tables, static_cast<const CudaLayerState&>(*state), encode_here});
}

CudaAppend::WindowRows CudaAppend::window_rows() const {
  // The tokens up to there went into pages.
  const int64_t window =
      plan_.sinks + (before_.first_page + before_.page_count + staged_.count) * kPageTokens - before_.length;
  const int64_t first = std::min(std::max(new_sinks(), window), tokens_);  // none where it ends among the sinks
  return {first, std::max<int64_t>(0, first - window)};
}

void CudaAppend::fill(const Appends::Target& target) const {
  const cudaStream_t stream = layer_.queue().stream;
  const WindowRows window = window_rows();
  check(append_rows(layer_.row_shape(), input_, begin_, new_sinks(), target.sinks, before_.length, stream),
        "appending sinks");
  check(append_rows(layer_.row_shape(), input_, begin_ + window.first, tokens_ - window.first, target.window,
                    window.row, stream),
        "appending rows");
}

void CudaAppend::list(const Appends::Target& target, std::vector<RowMove>& moves) const {
  const auto add = [&](uint8_t* const* blocks, int64_t row, int64_t token) {
    moves.push_back({blocks[row / kTileSize], static_cast<int32_t>(row % kTileSize), static_cast<int32_t>(token)});
  };
  for (int64_t i = 0; i < new_sinks(); ++i) add(target.sinks, before_.length + i, begin_ + i);
  const WindowRows window = window_rows();
  for (int64_t i = window.first; i < tokens_; ++i) add(target.window, window.row + i - window.first, begin_ + i);
}

CudaAppends::CudaAppends(const DeviceLayer& layer, const std::atomic<uint64_t>& epoch, const InputRows& input,
                         DeviceScratch memory, const std::vector<int64_t>& counts)
    : layer_(layer), epoch_(epoch), input_(input), memory_(std::move(memory)) {
  int64_t begin = 0;
  for (const int64_t tokens : counts) {
    appends_.push_back(std::make_unique<CudaAppend>(layer, input_, begin, tokens));
    begin += tokens;
  }
  if (counts.size() > 1) together_ = std::make_unique<Together>(layer, static_cast<size_t>(begin), counts.size());
}

void CudaAppends::fill(const Target* targets) {
  const CurrentDevice current(kDevice);
  if (!together_) return appends_.front()->fill(targets[0]);
  std::vector<RowMove>& moves = together_->moves;
  for (size_t i = 0; i < appends_.size(); ++i) appends_[i]->list(targets[i], moves);
  if (moves.empty()) return;
  layer_.queue().upload(together_->moves_there.as<void>(), moves.data(), moves.size() * sizeof(RowMove),
                        "appending rows");
  check(append_listed_rows(layer_.row_shape(), input_, together_->moves_there.as<RowMove>(),
                           static_cast<int64_t>(moves.size()), layer_.queue().stream),
        "appending rows");
}

void CudaAppends::finish(const SequenceView* views) {
  const CurrentDevice current(kDevice);
  for (size_t i = 0; i < appends_.size(); ++i) {
    static_cast<CudaLayerState*>(views[i].state)
        ->update(views[i], epoch_, together_ ? &together_->descriptions : nullptr);
  }
  if (together_) together_->descriptions.write("describing sequences");
}

}  // namespace kvasir::cuda
