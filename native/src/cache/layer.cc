#include "cache/layer.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/scratch.h"
#include "kvasir/error.h"

namespace kvasir {

SequenceView SequenceLayer::view(const LayerPlan& plan) const {
  SequenceView view = {};
  view.length = length_;
  view.sinks = static_cast<int>(std::min<int64_t>(length_, plan.sinks));
  view.sink_blocks = sinks_.addresses();
  view.window_blocks = window_.addresses();
  view.window = static_cast<int>(body(plan) - sealed_pages() * kPageTokens);
  view.pages = page_views_.data();
  view.page_count = page_count();
  view.first_page = dropped_pages_;
  view.tables[0] = &tables_[0];
  view.tables[1] = &tables_[1];
  view.state = state_.get();
  return view;
}

void SequenceLayer::tell(const LayerPlan& plan, Memory& memory, Engine& engine) const {
  const auto pages = memory.read(plan.index);  // an engine that lists them must not meet one half shrunk
  engine.update(plan, view(plan), state_.get());
}

void SequenceLayer::decode_page(const LayerPlan& plan, Engine& engine, int64_t page, Side side, float* rows) const {
  const int index = static_cast<int>(side);
  const int heads = plan.attention.kv_heads;
  const PageView& view = *page_views_[page - dropped_pages_];
  const PageFormat& format = view.format(side);
  const auto d = static_cast<size_t>(format.head_dim);
  if (format.heads == heads && heads > 1) {
    plan.attention.codecs[index].decode(format, engine.part(plan, view, side, 0), rows);
    return;
  }
  float* of_head = rows + kPageTokens * heads * d;
  for (int head = 0; head < heads; ++head) {
    const uint8_t* part = engine.part(plan, view, side, head);
    plan.attention.codecs[index].decode(format, part, of_head);
    if (plan.codecs[index]->restore) {
      const auto vectors = side_vectors(tables_[index], head, format.head_dim);
      plan.codecs[index]->restore(format, side_view(tables_[index], vectors, page), part, of_head);
    }
    for (int t = 0; t < kPageTokens; ++t)
      std::memcpy(rows + (t * heads + head) * d, of_head + t * d, sizeof(float) * d);
  }
}

void SequenceLayer::read_halves(const LayerPlan& plan, Engine& engine, const RowBlocks& rows, Side side, int64_t first,
                                int64_t count, float* out) {
  const int heads = plan.attention.kv_heads;
  const auto d = static_cast<size_t>(plan.attention.head_dim);
  struct HeadRows;
  float* of_head = thread_scratch<HeadRows, float>(static_cast<size_t>(count) * d);
  for (int head = 0; head < heads; ++head) {
    engine.read_rows(plan, rows.addresses(), side, head, first, count, of_head);
    for (int64_t t = 0; t < count; ++t) std::memcpy(out + (t * heads + head) * d, of_head + t * d, sizeof(float) * d);
  }
}

void SequenceLayer::drop_old_pages(const LayerPlan& plan, int64_t length) {
  if (plan.attention.sliding_window == 0) return;
  // One page more than the window needs stays, so that a sequence can step back by kPageTokens.
  const int64_t unseen = length - plan.attention.sliding_window - kPageTokens - plan.sinks;
  const int64_t drop = std::min(unseen / kPageTokens - dropped_pages_, page_count());
  if (drop <= 0) return;
  pages_.erase(pages_.begin(), pages_.begin() + drop);
  page_views_.erase(page_views_.begin(), page_views_.begin() + drop);
  dropped_pages_ += drop;
}

void SequenceLayer::check_truncate(const LayerPlan& plan, int64_t length) const {
  if (length >= length_ || length <= plan.sinks) return;
  const int64_t oldest_needed = std::max<int64_t>(plan.sinks, length - plan.attention.sliding_window);
  if (oldest_needed < first_held(plan)) {
    throw Error(ErrorCode::kInvalidArgument, "layer " + std::to_string(plan.index) + " slides over " +
                                                 std::to_string(plan.attention.sliding_window) +
                                                 " tokens and holds those from " + std::to_string(first_held(plan)) +
                                                 " on: it cannot go back to length " + std::to_string(length));
  }
}

// Where the cut goes through a page, what remains of it returns to the window; where not, rows are merely left out.
RowBlocks::Change SequenceLayer::window_cut(const LayerPlan& plan, int64_t length) const {
  const int64_t kept_pages = pages_at(plan, length);
  const int64_t rows = body_at(plan, length) - kept_pages * kPageTokens;
  if (kept_pages == sealed_pages()) return {0, rows, rows};
  return {window_.count(), 0, rows};
}

SequenceLayer::Cut SequenceLayer::prepare_cut(const LayerPlan& plan, Memory& memory, Engine& engine, int64_t length,
                                              float* scratch) const {
  Cut cut;
  if (length >= length_) return cut;
  const RowBlocks::Change change = window_cut(plan, length);
  Pool::Reservation bytes = memory.pool().overdraw(plan.index, window_.missing(change) * plan.row_block_bytes());
  cut.window = changed(plan, engine, bytes, window_, change);
  cut.window.keep(change.rows);
  const auto tokens = static_cast<int>(change.rows);
  if (pages_at(plan, length) == sealed_pages() || tokens == 0) return cut;
  std::vector<float> rows[2];
  const int heads = plan.attention.kv_heads;
  const auto d = static_cast<size_t>(plan.attention.head_dim);
  for (Side side : {Side::kKeys, Side::kValues}) {
    {
      const auto pages = memory.read(plan.index);
      decode_page(plan, engine, pages_at(plan, length), side, scratch);
    }
    for (int head = 0; head < heads; ++head) {
      // Ranges are rounded up, so a decoded element may pass what append accepts, and what a later page could hold.
      for (int t = 0; t < tokens; ++t) {
        for (size_t c = 0; c < d; ++c) {
          rows[static_cast<int>(side)].push_back(
              std::clamp(scratch[(t * heads + head) * d + c], -kMaxMagnitude, kMaxMagnitude));
        }
      }
    }
  }
  cut.rows = engine.take_back(plan, tokens, std::move(rows));
  return cut;
}

void SequenceLayer::truncate(const LayerPlan& plan, Memory& memory, Engine& engine, int64_t length, Cut cut) {
  if (length >= length_) return;
  const int64_t kept_pages = pages_at(plan, length);
  if (kept_pages < sealed_pages()) {
    // The cut goes through a page: what remains of it returns to the window.
    if (cut.rows) cut.rows->write(cut.window.addresses());
    const int64_t held = std::max<int64_t>(0, kept_pages - dropped_pages_);
    pages_.resize(static_cast<size_t>(held));
    page_views_.resize(static_cast<size_t>(held));
    dropped_pages_ = std::min(dropped_pages_, kept_pages);
    for (SideTable& table : tables_) table.truncate(kept_pages);
  }
  window_ = std::move(cut.window);
  sinks_.keep(std::min<int64_t>(length, plan.sinks));
  length_ = length;
  tell(plan, memory, engine);
}

SequenceLayer::Kept SequenceLayer::prepare_keep(const LayerPlan& plan, Memory& memory, Engine& engine, const int* kept,
                                                int count) const {
  const int64_t first[2] = {std::min<int64_t>(guesses_from_, plan.sinks),
                            body_at(plan, guesses_from_) - sealed_pages() * kPageTokens};
  const int64_t length = guesses_from_ + count;
  const int64_t rows[2] = {std::min<int64_t>(length, plan.sinks), body_at(plan, length) - sealed_pages() * kPageTokens};
  const int64_t blocks = sinks_.shared_from(first[0], rows[0]) + window_.shared_from(first[1], rows[1]);
  Pool::Reservation bytes = memory.pool().overdraw(plan.index, blocks * plan.row_block_bytes());
  const auto take = [&] { return RowBlock(bytes.take(BlockKind::kRows, plan.row_block_bytes())); };
  const auto copy = [&](const uint8_t* from, uint8_t* to) {
    engine.copy(from, to, static_cast<size_t>(plan.row_block_bytes()));
  };
  Kept result = {length, sinks_.own(first[0], rows[0], take, copy), window_.own(first[1], rows[1], take, copy), {}};
  // Where the row of a token is, in blocks of before and after.
  const auto place = [&](const RowBlocks& sinks, const RowBlocks& window, int64_t token) {
    const bool sink = token < plan.sinks;
    const int64_t row = sink ? token : token - plan.sinks - sealed_pages() * kPageTokens;
    return std::pair<uint8_t*, int>((sink ? sinks : window).addresses()[row / kRowBlockTokens],
                                    static_cast<int>(row % kRowBlockTokens));
  };
  for (int i = 0; i < count; ++i) {
    const auto [from, from_row] = place(sinks_, window_, guesses_from_ + kept[i]);
    const auto [to, to_row] = place(result.sinks, result.window, guesses_from_ + i);
    if (from != to || from_row != to_row) result.copies.push_back({from, from_row, to, to_row});
  }
  return result;
}

void SequenceLayer::keep(const LayerPlan& plan, Memory& memory, Engine& engine, Kept kept) {
  engine.copy_rows(plan, kept.copies.data(), static_cast<int>(kept.copies.size()));
  sinks_ = std::move(kept.sinks);
  window_ = std::move(kept.window);
  length_ = kept.length;
  end_guesses();
  end_promise();
  tell(plan, memory, engine);
}

SequenceLayer SequenceLayer::fork(const LayerPlan& plan, Memory& memory, Engine& engine) const {
  SequenceLayer copy;
  if (begun_) {
    copy.state_ = engine.make_state(plan);
    engine.reserve(copy.state_.get(), page_count(), tables_);
  }
  if (queries_) {
    copy.queries_ = queries_.copy(
        engine, memory.take(plan.index, BlockKind::kRows, queries_.bytes(), BlockPlace::kEngine, promised_.get()));
  }
  copy.begun_ = begun_;
  copy.sinks_ = sinks_;
  copy.window_ = window_;
  copy.window_.give_back_spare();
  copy.length_ = length_;
  copy.guesses_from_ = guesses_from_;
  copy.dropped_pages_ = dropped_pages_;
  copy.pages_ = pages_;
  copy.page_views_ = page_views_;
  copy.tables_[0] = tables_[0];
  copy.tables_[1] = tables_[1];
  if (begun_) copy.tell(plan, memory, engine);
  return copy;
}

void SequenceLayer::read(const LayerPlan& plan, Engine& engine, Side side, int64_t first, int64_t tokens, float* out,
                         float* scratch) const {
  const size_t row = static_cast<size_t>(plan.attention.kv_heads) * plan.attention.head_dim;
  const int64_t sealed_end = plan.sinks + sealed_pages() * kPageTokens;
  for (int64_t i = 0; i < tokens;) {
    // Up to the end of the sinks, of a page, or of the window.
    const int64_t position = first + i;
    const int64_t left = tokens - i;
    float* rows = out + static_cast<size_t>(i) * row;
    int64_t count = 0;
    if (position < plan.sinks) {
      count = std::min<int64_t>(left, plan.sinks - position);
      read_halves(plan, engine, sinks_, side, position, count, rows);
    } else if (position >= sealed_end) {
      count = left;
      read_halves(plan, engine, window_, side, position - sealed_end, count, rows);
    } else {
      const int64_t token = (position - plan.sinks) % kPageTokens;
      count = std::min<int64_t>(left, kPageTokens - token);
      decode_page(plan, engine, (position - plan.sinks) / kPageTokens, side, scratch);
      std::memcpy(rows, scratch + static_cast<size_t>(token) * row, sizeof(float) * static_cast<size_t>(count) * row);
    }
    i += count;
  }
}

}  // namespace kvasir
