// Layers of sequences as they are saved, and back.
#include <algorithm>
#include <utility>

#include "cache/layer.h"
#include "engine/query_sums.h"

namespace kvasir {
namespace {

int64_t rows_of(const LayerPlan& plan, const Halves& halves) {
  return static_cast<int64_t>(halves.size()) / plan.elements_per_token();
}

// The same vectors in memory of the pool.
SideTable moved(const LayerPlan& plan, Pool::Reservation& bytes, const SideTable& table) {
  SideTable next;
  for (const SideChunk& chunk : table.chunks) {
    const size_t halves = static_cast<size_t>(plan.attention.kv_heads) * chunk.rows * plan.attention.head_dim;
    auto block = std::make_shared<Block>(
        bytes.take(BlockKind::kSideTable, static_cast<int64_t>(std::max<size_t>(halves, 1) * sizeof(uint16_t)),
                   BlockPlace::kHost));
    auto* vectors = reinterpret_cast<uint16_t*>(block->data());
    std::copy_n(chunk.vectors.get(), halves, vectors);
    next.chunks.push_back({std::shared_ptr<const uint16_t>(std::move(block), vectors), chunk.rows, chunk.page});
  }
  return next;
}

int64_t table_bytes(const LayerPlan& plan, const SideTable& table) {
  int64_t bytes = 0;
  for (const SideChunk& chunk : table.chunks) {
    const int64_t halves = int64_t{plan.attention.kv_heads} * chunk.rows * plan.attention.head_dim;
    bytes += std::max<int64_t>(halves, 1) * static_cast<int64_t>(sizeof(uint16_t));
  }
  return bytes;
}

// What is saved of queries where a sequence has tokens and saw none; it has no memory for them then, and none again.
std::vector<uint8_t> no_queries(const LayerPlan& plan) {
  std::vector<uint8_t> bytes(static_cast<size_t>(QuerySums::bytes_before_count(plan.attention)));
  std::fill_n(QuerySums::at(plan.attention, bytes.data()).known, QuerySums::channels(plan.attention), 1.0f);
  return bytes;
}

bool saw_queries(const LayerPlan& plan, const LayerImage& image) {
  return !image.queries.empty() && (image.query_count > 0 || image.queries != no_queries(plan));
}

}  // namespace

LayerImage SequenceLayer::image(const LayerPlan& plan, Engine& engine) const {
  LayerImage image;
  image.length = length_;
  image.dropped_pages = dropped_pages_;
  image.guesses_from = guesses_from_;
  image.pages = pages_;
  for (int side = 0; side < 2; ++side) image.tables[side] = tables_[side];
  if (queries_) {
    image.queries = queries_.read(engine);
    image.query_count = *QuerySums::at(plan.attention, image.queries.data()).count;
    image.queries.resize(static_cast<size_t>(QuerySums::bytes_before_count(plan.attention)));
  } else if (plan.wants_queries && length_ > 0) {
    image.queries = no_queries(plan);
  }
  return image;
}

int64_t SequenceLayer::bytes_to_restore(const LayerPlan& plan, const LayerImage& image) {
  const int64_t blocks =
      RowBlocks::blocks_of(rows_of(plan, image.sinks)) + RowBlocks::blocks_of(rows_of(plan, image.window));
  return blocks * plan.row_block_bytes() + table_bytes(plan, image.tables[0]) + table_bytes(plan, image.tables[1]) +
         (saw_queries(plan, image) ? QuerySums::bytes(plan.attention) : 0);
}

// Blocks of that many rows, which are all to be written: what is beyond them is clear.
RowBlocks SequenceLayer::restored(const LayerPlan& plan, Engine& engine, Pool::Reservation& bytes, int64_t rows) {
  int64_t left = rows;
  const auto take = [&] {
    Block block = bytes.take(BlockKind::kRows, plan.row_block_bytes());
    if (left < kRowBlockTokens) engine.clear_rows(plan, block.data());
    left -= kRowBlockTokens;
    return RowBlock(std::move(block));
  };
  return RowBlocks().after({0, 0, rows}, take, [](const uint8_t*, uint8_t*) {});
}

void SequenceLayer::image_rows(const LayerPlan& plan, LayerImage& image, std::vector<ImageRows>& out) const {
  const auto add = [&](const RowBlocks& blocks, Halves& halves) {
    if (!halves.empty()) out.push_back({&plan, blocks.addresses(), rows_of(plan, halves), halves.data()});
  };
  add(sinks_, image.sinks);
  add(window_, image.window);
}

SequenceLayer::SequenceLayer(const LayerPlan& plan, Engine& engine, Pool::Reservation& bytes, LayerImage& image)
    : length_(image.length), dropped_pages_(image.dropped_pages), guesses_from_(image.guesses_from) {
  if (saw_queries(plan, image)) {
    Block block = bytes.take(BlockKind::kRows, QuerySums::bytes(plan.attention));
    image.queries.resize(static_cast<size_t>(block.bytes()));
    *QuerySums::at(plan.attention, image.queries.data()).count = image.query_count;
    queries_.restore(engine, std::move(block), image.queries);
  }
  if (length_ == 0) return;
  begun_ = true;
  sinks_ = restored(plan, engine, bytes, rows_of(plan, image.sinks));
  window_ = restored(plan, engine, bytes, rows_of(plan, image.window));
  for (int side = 0; side < 2; ++side) tables_[side] = moved(plan, bytes, image.tables[side]);
  pages_ = image.pages;  // which keeps them: where this throws, none may die under the caller's lock (Memory::read)
  for (const auto& page : pages_) page_views_.push_back(&page->view());
  state_ = engine.make_state(plan);
  engine.reserve(state_.get(), page_count(), tables_);
  engine.update(plan, view(plan), state_.get());
}

}  // namespace kvasir
