// How a layer of a sequence grows: what an append takes, in steps, of which the last cannot fail.
#include <algorithm>
#include <cfloat>
#include <numeric>
#include <string>

#include "base/scratch.h"
#include "cache/layer.h"

namespace kvasir {

// What a codec's side table may look at and draw from while pages are sealed.
class SequenceLayer::Seal : public SealInput {
 public:
  Seal(const SequenceLayer& layer, const LayerPlan& plan, const Append& append, Side side, int64_t page_count,
       int64_t body, Pool::Reservation& bytes)
      : SealInput(plan.attention.kv_heads, layer.sealed_pages(), page_count, body, *plan.match, ThreadPool::current()),
        plan_(plan),
        append_(append),
        side_(side),
        bytes_(bytes) {}

  void rows(int kv_head, int64_t first, int64_t count, float* out) const override {
    append_.rows(side_, kv_head, first, count, out, plan_.attention.head_dim);
  }

  std::shared_ptr<uint16_t> take(int64_t halves) override {
    const int64_t bytes = halves * static_cast<int64_t>(sizeof(uint16_t));
    auto block = std::make_shared<Block>(bytes_.take(BlockKind::kSideTable, bytes, BlockPlace::kHost));
    return {block, reinterpret_cast<uint16_t*>(block->data())};
  }

 private:
  const LayerPlan& plan_;
  const Append& append_;
  const Side side_;
  Pool::Reservation& bytes_;
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
  const uint8_t* sums = plan.wants_queries && queries_ ? queries_.sums() : nullptr;
  if (append.lay_out(sums, heads)) return heads;
  std::vector<float> importance(kv_heads * d, 1.0f);
  if (sums) engine.read_query_means(plan, sums, importance.data());
  // Keys are stored divided by the scaling, and meet queries multiplied by it.
  for (size_t i = 0; i < plan.key_scaling.size(); ++i) {
    importance[i] = std::min(importance[i] * plan.key_scaling[i], FLT_MAX);
  }

  for (Side side : {Side::kKeys, Side::kValues}) {
    const int index = static_cast<int>(side);
    const PageFormat& format = attention.formats[index];
    if (!format.varies()) continue;
    heads.bytes[index].resize(static_cast<size_t>(pages) * kv_heads * format.head_bytes);
    ThreadPool::current().run(static_cast<int>(pages) * kv_heads, [&](int task) {
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

int64_t SequenceLayer::pages_to_seal(const LayerPlan& plan, int64_t new_length) const {
  const int64_t settled = guessing() ? std::min(new_length, guesses_from_) : new_length;
  return std::max<int64_t>(0, (body_at(plan, settled) - plan.window) / kPageTokens - sealed_pages());
}

int64_t SequenceLayer::tables_growth(const LayerPlan& plan, int64_t at_once, int64_t later) const {
  int64_t halves = 0;
  for (int side = 0; side < 2; ++side) {
    if (!plan.codecs[side]->growth || at_once == 0) continue;
    const auto growth = [&](int64_t pages, bool has_vectors) {
      return plan.codecs[side]->growth(plan.attention.formats[side], plan.attention.kv_heads, pages, has_vectors);
    };
    halves += growth(at_once, tables_[side].size() > 0) + growth(later, true);
  }
  return halves * static_cast<int64_t>(sizeof(uint16_t));
}

Memory::Needs SequenceLayer::most_needs(const LayerPlan& plan, int64_t tokens) const {
  Memory::Needs needs;
  const int64_t new_length = length_ + tokens;
  needs.pages = pages_to_seal(plan, new_length);
  const RowBlocks::Change window = window_change(plan, new_length, needs.pages);
  const int64_t rows = body(plan) - sealed_pages() * kPageTokens;
  const int64_t blocks =
      sinks_.missing(sinks_change(plan, new_length)) +
      window_.missing_in_steps(rows, window.rows + needs.pages * kPageTokens, plan.most_window_rows(), window.dropped);
  needs.bytes = blocks * plan.row_block_bytes() + needs.pages * plan.most_varying_bytes();
  if (needs.pages == 0) return needs;
  needs.bytes += tables_growth(plan, 1, needs.pages - 1);  // most where every page is sealed by a call of its own
  const int64_t in_turn = bytes_in_turn(plan, tokens, needs.pages);
  const int64_t at_once = needs.bytes + needs.pages * static_cast<int64_t>(plan.shapes[0].bytes());
  if (in_turn >= at_once) return needs;
  needs.bytes = in_turn;
  needs.pages = 0;
  return needs;
}

int64_t SequenceLayer::bytes_in_turn(const LayerPlan& plan, int64_t tokens, int64_t pages) const {
  const int64_t rows = body(plan) - sealed_pages() * kPageTokens, most = plan.window + kPageTokens;
  const bool tables = plan.codecs[0]->growth || plan.codecs[1]->growth;
  // Pages that may be wide would take what later rows need, and blocks that others hold do not come back.
  if (tables || plan.can_shrink() || guessing() || rows > most || window_.shared()) return INT64_MAX;
  const int64_t page = static_cast<int64_t>(plan.shapes[0].bytes()) + plan.most_varying_bytes();
  const int64_t block = plan.row_block_bytes();
  const int64_t left = body_at(plan, length_ + tokens) - (sealed_pages() + pages) * kPageTokens;
  // Before the last page is sealed, and at the end. Each page but the first may leave a part of a block unused.
  const int64_t before = (pages - 1) * page + RowBlocks::blocks_of(most) * block;
  const int64_t after = pages * page + RowBlocks::blocks_of(left) * block;
  const int64_t more = std::max(before, after) - window_.count() * block + (pages - 1) * block;
  return std::max<int64_t>(0, more) + sinks_.missing(sinks_change(plan, length_ + tokens)) * block;
}

void SequenceLayer::promise(std::unique_ptr<Pool::Reservation> room, int64_t tokens) {
  promised_ = std::move(room);
  promised_tokens_ = tokens;
}

void SequenceLayer::end_promise() {
  promised_.reset();
  promised_tokens_ = 0;
  window_.give_back_spare();
}

bool SequenceLayer::has_room(const LayerPlan& plan) const {
  return begun_ && pages_to_seal(plan, length_ + 1, 0) == 0 && !sinks_.changes(sinks_change(plan, length_ + 1)) &&
         !window_.changes(window_change(plan, length_ + 1, 0));
}

void SequenceLayer::extend(const LayerPlan& plan) {
  drop_old_pages(plan, length_);
  length_ += 1;
  if (--promised_tokens_ <= 0) end_promise();
}

SequenceLayer::Growth SequenceLayer::open(const LayerPlan& plan, Engine& engine, Append& append) const {
  Growth growth;
  growth.append = &append;
  growth.length = length_ + append.tokens();
  growth.promise = promised();
  Memory::Needs& needs = growth.needs;
  needs.pages = pages_to_seal(plan, growth.length, append.present());
  growth.changes[0] = sinks_change(plan, growth.length);
  growth.changes[1] = window_change(plan, growth.length, needs.pages);
  growth.other_blocks = sinks_.changes(growth.changes[0]) || window_.changes(growth.changes[1]);
  growth.takes = !begun_ || growth.other_blocks;
  append.open(view(plan), needs.pages);
  if (!growth.takes) return growth;
  growth.heads = lay_out_parts(plan, engine, append, needs.pages);
  const int64_t blocks = sinks_.missing(growth.changes[0]) + window_.missing(growth.changes[1]);
  needs.bytes = blocks * plan.row_block_bytes() + tables_growth(plan, needs.pages, 0) +
                std::accumulate(growth.heads.varying.begin(), growth.heads.varying.end(), int64_t{0});
  needs.promised = promised_.get();
  const int64_t block = plan.row_block_bytes(), returned = window_.returned(growth.changes[1]);
  // What was promised keeps its blocks for rows to come, but for those that its pages are paid with.
  if (promised_ && !plan.can_shrink()) {
    const int64_t pages = needs.pages * static_cast<int64_t>(plan.shapes[0].bytes());
    const int64_t lacking = std::max<int64_t>(0, needs.bytes + pages - promised_->left());
    growth.paid = std::min(returned, (lacking + block - 1) / block);
  }
  needs.returning = (promised_ ? growth.paid : returned) * block;
  return growth;
}

void SequenceLayer::take(const LayerPlan& plan, Memory& memory, Engine& engine, Pool::Reservation& bytes,
                         const PageShape* const* shapes, Growth& growth) {
  if (!growth.takes) return;
  growth.bytes = &bytes;
  if (growth.other_blocks) {
    growth.sinks = changed(plan, engine, bytes, sinks_, growth.changes[0]);
    growth.window = changed(plan, engine, bytes, window_, growth.changes[1]);
  }
  if (!begun_) growth.state = engine.make_state(plan);
  const int parts = plan.shapes[0].parts();
  for (size_t page = 0; page < static_cast<size_t>(growth.needs.pages); ++page) {
    const PageShape* shape = shapes[page];
    uint32_t* sizes = growth.heads.sizes.data() + page * parts;
    for (int i = 0; i < parts; ++i) {
      const PageFormat& format = shape->formats[i >= shape->parts(Side::kKeys)];
      if (!format.varies()) sizes[i] = static_cast<uint32_t>(format.page_bytes);
    }
    const int64_t page_bytes = static_cast<int64_t>(shape->bytes()) + growth.heads.varying[page];
    Block block = bytes.take(BlockKind::kPage, page_bytes, BlockPlace::kEngine, plan.can_shrink());
    growth.pages.push_back(std::make_shared<Page>(memory, plan.index, std::move(block), *shape, sizes));
  }
  pages_.reserve(pages_.size() + growth.pages.size());
  page_views_.reserve(pages_.size() + growth.pages.size());
}

void SequenceLayer::seal(const LayerPlan& plan, Engine& engine, Growth& growth) {
  LayerState* state = growth.state ? growth.state.get() : state_.get();
  const auto count = static_cast<int64_t>(growth.pages.size());
  if (count == 0) {
    if (growth.state) engine.reserve(state, page_count(), tables_);
    return;
  }
  for (int side = 0; side < 2; ++side) growth.tables[side] = tables_[side];
  for (Side side : {Side::kKeys, Side::kValues}) {
    const int index = static_cast<int>(side);
    if (!plan.codecs[index]->grow) continue;
    const int64_t present = body_at(plan, length_ + growth.append->present());
    Seal seal(*this, plan, *growth.append, side, count, present, *growth.bytes);
    if (growth.append->grow(side, seal, growth.tables[index], state)) continue;
    plan.codecs[index]->grow(plan.attention.formats[index], seal, growth.tables[index]);
  }
  engine.reserve(state, page_count() + count, growth.tables);
  std::vector<NewPage> pages;
  for (const auto& page : growth.pages) {
    pages.push_back(page->to_seal(sealed_pages() + static_cast<int64_t>(pages.size())));
  }
  growth.append->seal(pages, growth.heads, growth.tables, state);
}

Appends::Target SequenceLayer::target(const Growth& growth) const {
  return {(growth.other_blocks ? growth.sinks : sinks_).addresses(),
          (growth.other_blocks ? growth.window : window_).addresses()};
}

void SequenceLayer::restore_promise(const Promise& before) {
  if (promised_) promised_->restore(before.left, before.lent);
}

void SequenceLayer::abandon(const Growth& growth) { restore_promise(growth.promise); }

void SequenceLayer::commit(const LayerPlan& plan, Memory& memory, Engine& engine, Growth& growth) {
  if (growth.state) state_ = std::move(growth.state);
  begun_ = true;
  if (queries_ && !growth.pages.empty()) queries_.settle(plan, engine);
  if (growth.other_blocks) {
    sinks_ = std::move(growth.sinks);
    window_ = std::move(growth.window);
    window_.give_back_spare(growth.paid);
  }
  for (int side = 0; side < 2 && !growth.pages.empty(); ++side) tables_[side] = std::move(growth.tables[side]);
  memory.enlist(growth.pages, promised_.get(), growth.loan);
  for (auto& page : growth.pages) {
    page_views_.push_back(&page->view());
    pages_.push_back(std::move(page));
  }
  // By the old length: queries of the tokens appended now still see what they need.
  drop_old_pages(plan, length_);
  promised_tokens_ -= growth.length - length_;
  length_ = growth.length;
  if (promised_tokens_ <= 0) end_promise();
}

}  // namespace kvasir
