#include "cache/layer.h"

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <numeric>
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

// What a codec's side table may look at and draw from while pages are sealed.
class SequenceLayer::Seal : public SealInput {
 public:
  Seal(const SequenceLayer& layer, const LayerPlan& plan, const Append& append, Side side, int64_t page_count,
       int64_t body, Memory& memory)
      : SealInput(plan.attention.kv_heads, layer.sealed_pages(), page_count, body, *plan.match, ThreadPool::shared()),
        plan_(plan),
        append_(append),
        side_(side),
        memory_(memory) {}

  void rows(int kv_head, int64_t first, int64_t count, float* out) const override {
    append_.rows(side_, kv_head, first, count, out, plan_.attention.head_dim);
  }

  std::shared_ptr<uint16_t> take(int64_t halves) override {
    const int64_t bytes = halves * static_cast<int64_t>(sizeof(uint16_t));
    auto block = std::make_shared<Block>(memory_.take(plan_.index, BlockKind::kSideTable, bytes, BlockPlace::kHost));
    return {block, reinterpret_cast<uint16_t*>(block->data())};
  }

 private:
  const LayerPlan& plan_;
  const Append& append_;
  const Side side_;
  Memory& memory_;
};

PartHeads SequenceLayer::lay_out_parts(const LayerPlan& plan, Engine& engine, Append& append, int64_t pages) const {
  PartHeads heads;
  const AttentionLayer& attention = plan.attention;
  const int kv_heads = attention.kv_heads;
  const auto d = static_cast<size_t>(attention.head_dim);
  const PageShape& shape = plan.shapes[0];
  heads.sizes.resize(static_cast<size_t>(pages) * shape.parts());
  heads.varying.resize(static_cast<size_t>(pages));
  if (pages == 0 || !shape.varies()) return heads;
  const SeenQueries queries = plan.wants_queries ? queries_.seen() : SeenQueries{};
  if (append.lay_out(queries, heads)) return heads;
  std::vector<float> importance(kv_heads * d, 1.0f);
  if (queries.sums) engine.read_query_means(plan, queries, importance.data());
  // Keys are stored divided by the scaling, and meet queries multiplied by it.
  for (size_t i = 0; i < plan.key_scaling.size(); ++i) {
    importance[i] = std::min(importance[i] * plan.key_scaling[i], FLT_MAX);
  }

  for (Side side : {Side::kKeys, Side::kValues}) {
    const int index = static_cast<int>(side);
    const PageFormat& format = attention.formats[index];
    if (!format.varies()) continue;
    heads.bytes[index].resize(static_cast<size_t>(pages) * kv_heads * format.head_bytes);
    ThreadPool::shared().run(static_cast<int>(pages) * kv_heads, [&](int task) {
      const int64_t page = task / kv_heads;
      const int kv_head = task % kv_heads;
      struct PageRows;
      float* rows = thread_scratch<PageRows, float>(static_cast<size_t>(kPageTokens) * d);
      append.rows(side, kv_head, (sealed_pages() + page) * kPageTokens, kPageTokens, rows, attention.head_dim);
      uint8_t* head = heads.bytes[index].data() + static_cast<size_t>(task) * format.head_bytes;
      const size_t bytes = attention.codecs[index].lay_out(format, rows, importance.data() + kv_head * d, head);
      const int64_t part = (side == Side::kValues ? shape.parts(Side::kKeys) : 0) + kv_head;
      heads.sizes[static_cast<size_t>(page * shape.parts() + part)] = static_cast<uint32_t>(bytes);
    });
  }
  for (int64_t page = 0; page < pages; ++page) {
    const auto first = heads.sizes.begin() + page * shape.parts();
    heads.varying[static_cast<size_t>(page)] = std::accumulate(first, first + shape.parts(), int64_t{0});
  }
  return heads;
}

void SequenceLayer::prepare_queries(const LayerPlan& plan, Memory& memory, Engine& engine) {
  if (queries_) return;
  queries_.begin(plan, engine, memory.take(plan.index, BlockKind::kRows, QuerySums::bytes(plan.attention)));
}

RowBlocks::Change SequenceLayer::sinks_change(const LayerPlan& plan, int64_t new_length) const {
  return {0, std::min<int64_t>(length_, plan.sinks), std::min<int64_t>(new_length, plan.sinks)};
}

RowBlocks::Change SequenceLayer::window_change(const LayerPlan& plan, int64_t new_length, int64_t to_seal) const {
  const int64_t begin = (sealed_pages() + to_seal) * kPageTokens;
  const int64_t new_body = std::max<int64_t>(0, new_length - plan.sinks);
  return {to_seal * (kPageTokens / kRowBlockTokens), std::max<int64_t>(0, body(plan) - begin), new_body - begin};
}

RowBlocks SequenceLayer::changed(const LayerPlan& plan, Engine& engine, Pool::Reservation& bytes, const RowBlocks& rows,
                                 const RowBlocks::Change& change) {
  const auto take = [&] {
    Block block = bytes.take(BlockKind::kRows, plan.row_block_bytes());
    engine.clear_rows(plan, block.data());
    return RowBlock(std::move(block));
  };
  return rows.after(change, take, [&](const uint8_t* from, uint8_t* to) {
    engine.copy(from, to, static_cast<size_t>(plan.row_block_bytes()));
  });
}

void SequenceLayer::append(const LayerPlan& plan, Memory& memory, Engine& engine, Append& append) {
  const int64_t new_length = length_ + append.tokens();
  const int64_t new_body = std::max<int64_t>(0, new_length - plan.sinks);
  const int64_t sealed = sealed_pages();
  const int64_t to_seal = std::max<int64_t>(0, (new_body - plan.window) / kPageTokens - sealed);
  const RowBlocks::Change changes[2] = {sinks_change(plan, new_length), window_change(plan, new_length, to_seal)};
  const bool other_blocks = sinks_.changes(changes[0]) || window_.changes(changes[1]);

  // Everything that can fail, first.
  append.open(view(plan), to_seal);
  RowBlocks sink_blocks, window_blocks;
  Block query_block;
  std::unique_ptr<LayerState> state;
  std::vector<std::shared_ptr<Page>> new_pages;
  if (other_blocks || !begun_) {
    PartHeads heads = lay_out_parts(plan, engine, append, to_seal);
    const int64_t row_bytes = (sinks_.missing(changes[0]) + window_.missing(changes[1])) * plan.row_block_bytes();
    const int64_t query_bytes = !plan.wants_queries || queries_ ? 0 : QuerySums::bytes(plan.attention);
    const int64_t varying = std::accumulate(heads.varying.begin(), heads.varying.end(), int64_t{0});
    const int64_t returning = window_.returned(changes[1]) * plan.row_block_bytes();
    Memory::Room room = memory.make_room(plan.index, row_bytes + query_bytes + varying, to_seal, returning);
    sink_blocks = changed(plan, engine, room.bytes, sinks_, changes[0]);
    window_blocks = changed(plan, engine, room.bytes, window_, changes[1]);
    if (!begun_) state = engine.make_state(plan);
    if (query_bytes > 0) query_block = room.bytes.take(BlockKind::kRows, query_bytes);
    LayerState* engine_state = state ? state.get() : state_.get();

    const int parts = plan.shapes[0].parts();
    std::vector<NewPage> pages;
    for (const PageShape* shape : room.shapes) {
      uint32_t* sizes = heads.sizes.data() + new_pages.size() * parts;
      const int64_t page_bytes = static_cast<int64_t>(shape->bytes()) + heads.varying[new_pages.size()];
      for (int i = 0; i < parts; ++i) {
        const PageFormat& format = shape->formats[i >= shape->parts(Side::kKeys)];
        if (!format.varies()) sizes[i] = static_cast<uint32_t>(format.page_bytes);
      }
      Block block = room.bytes.take(BlockKind::kPage, page_bytes, BlockPlace::kEngine, plan.can_shrink());
      new_pages.push_back(std::make_shared<Page>(memory, plan.index, std::move(block), *shape, sizes));
      pages.push_back(new_pages.back()->to_seal(sealed + static_cast<int64_t>(pages.size())));
    }
    pages_.reserve(pages_.size() + new_pages.size());
    page_views_.reserve(pages_.size() + new_pages.size());

    SideTable tables[2] = {tables_[0], tables_[1]};
    for (Side side : {Side::kKeys, Side::kValues}) {
      const int index = static_cast<int>(side);
      if (to_seal == 0 || !plan.codecs[index]->grow) continue;
      Seal seal(*this, plan, append, side, to_seal, new_body, memory);
      if (append.grow(side, seal, tables[index], engine_state)) continue;
      plan.codecs[index]->grow(plan.attention.formats[index], seal, tables[index]);
    }
    engine.reserve(engine_state, page_count() + to_seal, tables);
    if (to_seal > 0) append.seal(pages, heads, tables, engine_state);
    for (int side = 0; side < 2; ++side) tables_[side] = std::move(tables[side]);
  }

  // From here on nothing throws.
  if (state) state_ = std::move(state);
  begun_ = true;
  if (query_block) queries_.begin(plan, engine, std::move(query_block));
  if (queries_ && to_seal > 0) queries_.settle(plan, engine);
  append.fill((other_blocks ? sink_blocks : sinks_).addresses(), (other_blocks ? window_blocks : window_).addresses());
  if (other_blocks) {
    sinks_ = std::move(sink_blocks);
    window_ = std::move(window_blocks);
  }
  for (auto& page : new_pages) {
    page_views_.push_back(&page->view());
    memory.enlist(*page);
    pages_.push_back(std::move(page));
  }
  // By the old length: queries of the tokens appended now still see what they need.
  drop_old_pages(plan, length_);
  length_ = new_length;
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
  if (pages_at(plan, length) == sealed_pages()) return cut;
  cut.tokens = static_cast<int>(change.rows);
  if (cut.tokens == 0) return cut;
  const int heads = plan.attention.kv_heads;
  const auto d = static_cast<size_t>(plan.attention.head_dim);
  for (Side side : {Side::kKeys, Side::kValues}) {
    {
      const auto pages = memory.read(plan.index);
      decode_page(plan, engine, pages_at(plan, length), side, scratch);
    }
    std::vector<float>& rows = cut.rows[static_cast<int>(side)];
    for (int head = 0; head < heads; ++head) {
      // Ranges are rounded up, so a decoded element may pass what append accepts, and what a later page could hold.
      for (int t = 0; t < cut.tokens; ++t) {
        for (size_t c = 0; c < d; ++c) {
          rows.push_back(std::clamp(scratch[(t * heads + head) * d + c], -kMaxMagnitude, kMaxMagnitude));
        }
      }
    }
  }
  return cut;
}

void SequenceLayer::truncate(const LayerPlan& plan, Engine& engine, int64_t length, Cut cut) {
  if (length >= length_) return;
  const int64_t kept_pages = pages_at(plan, length);
  if (kept_pages < sealed_pages()) {
    // The cut goes through a page: what remains of it returns to the window.
    const size_t of_head = static_cast<size_t>(cut.tokens) * plan.attention.head_dim;
    for (Side side : {Side::kKeys, Side::kValues}) {
      for (int head = 0; cut.tokens > 0 && head < plan.attention.kv_heads; ++head) {
        engine.write_rows(plan, cut.window.addresses(), side, head, 0, cut.tokens,
                          cut.rows[static_cast<int>(side)].data() + head * of_head);
      }
    }
    const int64_t held = std::max<int64_t>(0, kept_pages - dropped_pages_);
    pages_.resize(static_cast<size_t>(held));
    page_views_.resize(static_cast<size_t>(held));
    dropped_pages_ = std::min(dropped_pages_, kept_pages);
    for (SideTable& table : tables_) table.truncate(kept_pages);
  }
  window_ = std::move(cut.window);
  sinks_.keep(std::min<int64_t>(length, plan.sinks));
  length_ = length;
  engine.update(plan, view(plan), state_.get());
}

SequenceLayer SequenceLayer::fork(const LayerPlan& plan, Memory& memory, Engine& engine) const {
  SequenceLayer copy;
  if (begun_) {
    copy.state_ = engine.make_state(plan);
    engine.reserve(copy.state_.get(), page_count(), tables_);
  }
  if (queries_) {
    copy.queries_ = queries_.copy(engine, memory.take(plan.index, BlockKind::kRows, queries_.bytes()));
  }
  copy.begun_ = begun_;
  copy.sinks_ = sinks_;
  copy.window_ = window_;
  copy.length_ = length_;
  copy.dropped_pages_ = dropped_pages_;
  copy.pages_ = pages_;
  copy.page_views_ = page_views_;
  copy.tables_[0] = tables_[0];
  copy.tables_[1] = tables_[1];
  if (begun_) engine.update(plan, copy.view(plan), copy.state_.get());
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
