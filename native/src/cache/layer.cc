#include "cache/layer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "base/checked.h"
#include "base/scratch.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

// Row of `token` and `kv_head` in appended data.
const void* input_row(const LayerPlan& plan, const TokenRows& rows, Side side, int64_t token, int kv_head) {
  const size_t element = rows.types[static_cast<int>(side)] == ElementType::kFloat32 ? sizeof(float) : sizeof(uint16_t);
  const size_t row = static_cast<size_t>(token) * plan.attention.kv_heads + kv_head;
  return static_cast<const char*>(rows.sides[static_cast<int>(side)]) + row * plan.attention.head_dim * element;
}

}  // namespace

uint16_t* SequenceLayer::half_row(const LayerPlan& plan, Side side, int kv_head, int64_t row) const {
  const size_t head = static_cast<size_t>(side == Side::kValues ? plan.attention.kv_heads : 0) + kv_head;
  const size_t index = head * plan.half_rows() + static_cast<size_t>(row);
  return reinterpret_cast<uint16_t*>(halves_.data()) + index * plan.attention.head_dim;
}

SequenceView SequenceLayer::view(const LayerPlan& plan) const {
  SequenceView view = {};
  view.length = length_;
  view.sinks = static_cast<int>(std::min<int64_t>(length_, plan.sinks));
  view.half_rows = plan.half_rows();
  view.halves[0] = half_row(plan, Side::kKeys, 0, 0);
  view.halves[1] = half_row(plan, Side::kValues, 0, 0);
  view.window_row = plan.sinks;
  view.window = static_cast<int>(body(plan) - sealed_pages() * kPageTokens);
  view.pages = page_views_.data();
  view.page_count = page_count();
  view.first_page = dropped_pages_;
  view.tables[0] = &tables_[0];
  view.tables[1] = &tables_[1];
  return view;
}

// What a codec's side table may look at and draw from while pages are sealed.
class SequenceLayer::Seal : public SealInput {
 public:
  Seal(const SequenceLayer& layer, const LayerPlan& plan, const TokenRows& rows, Side side, int64_t page_count,
       int64_t body, Memory& memory, ThreadPool& threads)
      : SealInput(plan.attention.kv_heads, layer.sealed_pages(), page_count, body, *plan.match, threads),
        layer_(layer),
        plan_(plan),
        rows_(rows),
        side_(side),
        memory_(memory) {}

  void rows(int kv_head, int64_t first, int64_t count, float* out) const override {
    layer_.gather(plan_, rows_, side_, kv_head, first, count, out, plan_.attention.head_dim);
  }

  std::shared_ptr<uint16_t> take(int64_t halves) override {
    auto block = std::make_shared<Block>(
        memory_.take(plan_.index, BlockKind::kSideTable, halves * static_cast<int64_t>(sizeof(uint16_t))));
    return {block, reinterpret_cast<uint16_t*>(block->data())};
  }

 private:
  const SequenceLayer& layer_;
  const LayerPlan& plan_;
  const TokenRows& rows_;
  const Side side_;
  Memory& memory_;
};

struct SequenceLayer::PartHeads {
  std::vector<uint32_t> sizes;    // [page][part], of the whole part; 0 where it does not vary
  std::vector<uint8_t> bytes[2];  // by side: [page][kv_head][head_bytes]

  // Null where the side does not vary.
  const uint8_t* head(const AttentionLayer& layer, int64_t page, int side, int kv_head) const {
    const size_t part = static_cast<size_t>(page) * layer.kv_heads + kv_head;
    return bytes[side].empty() ? nullptr : bytes[side].data() + part * layer.formats[side].head_bytes;
  }
};

SequenceLayer::PartHeads SequenceLayer::lay_out_parts(const LayerPlan& plan, const TokenRows& rows, int64_t pages,
                                                      ThreadPool& threads) const {
  PartHeads heads;
  const AttentionLayer& attention = plan.attention;
  const int kv_heads = attention.kv_heads;
  const auto d = static_cast<size_t>(attention.head_dim);
  const PageShape& shape = plan.shapes[0];
  heads.sizes.resize(static_cast<size_t>(pages) * shape.parts());
  if (pages == 0 || !shape.varies()) return heads;
  std::vector<float> importance(kv_heads * d, 1.0f);
  if (plan.wants_queries && queries_) queries_.read(attention, importance.data());
  // Keys are stored divided by the scaling, and meet queries multiplied by it.
  for (size_t i = 0; i < plan.key_scaling.size(); ++i) importance[i] *= plan.key_scaling[i];

  for (Side side : {Side::kKeys, Side::kValues}) {
    const int index = static_cast<int>(side);
    const PageFormat& format = attention.formats[index];
    if (!format.varies()) continue;
    heads.bytes[index].resize(static_cast<size_t>(pages) * kv_heads * format.head_bytes);
    threads.run(static_cast<int>(pages) * kv_heads, [&](int task) {
      const int64_t page = task / kv_heads;
      const int kv_head = task % kv_heads;
      struct PageRows;
      float* gathered = thread_scratch<PageRows, float>(static_cast<size_t>(kPageTokens) * d);
      gather(plan, rows, side, kv_head, (sealed_pages() + page) * kPageTokens, kPageTokens, gathered,
             attention.head_dim);
      uint8_t* head = heads.bytes[index].data() + static_cast<size_t>(task) * format.head_bytes;
      const size_t bytes = attention.codecs[index].lay_out(format, gathered, importance.data() + kv_head * d, head);
      const int64_t part = (side == Side::kValues ? shape.parts(Side::kKeys) : 0) + kv_head;
      heads.sizes[static_cast<size_t>(page * shape.parts() + part)] = static_cast<uint32_t>(bytes);
    });
  }
  return heads;
}

void SequenceLayer::prepare_queries(const LayerPlan& plan, Memory& memory) {
  if (queries_) return;
  queries_.begin(plan.attention, memory.take(plan.index, BlockKind::kWindow, QueryMeans::bytes_for(plan.attention)));
}

void SequenceLayer::append(const LayerPlan& plan, Memory& memory, const TokenRows& rows, ThreadPool& threads) {
  const int64_t new_length = length_ + rows.tokens;
  const int64_t new_body = std::max<int64_t>(0, new_length - plan.sinks);
  const int64_t sealed = sealed_pages();
  const int64_t to_seal = std::max<int64_t>(0, (new_body - plan.window) / kPageTokens - sealed);

  // Everything that can fail, first.
  Block halves;
  Block query_block;
  std::vector<std::shared_ptr<Page>> new_pages;
  PartHeads heads;
  const int parts = plan.shapes[0].parts();
  const int key_parts = plan.shapes[0].parts(Side::kKeys);
  if (!halves_ || to_seal > 0) {
    heads = lay_out_parts(plan, rows, to_seal, threads);
    const int64_t half_bytes = halves_ ? 0 : plan.half_bytes();
    const int64_t query_bytes = !plan.wants_queries || queries_ ? 0 : QueryMeans::bytes_for(plan.attention);
    const int64_t varying = std::accumulate(heads.sizes.begin(), heads.sizes.end(), int64_t{0});
    Memory::Room room = memory.make_room(plan.index, half_bytes + query_bytes + varying, to_seal);
    if (half_bytes > 0) halves = room.bytes.take(BlockKind::kWindow, half_bytes);
    if (query_bytes > 0) query_block = room.bytes.take(BlockKind::kWindow, query_bytes);
    for (const PageShape* shape : room.shapes) {
      uint32_t* sizes = heads.sizes.data() + new_pages.size() * parts;
      const int64_t page_bytes = std::accumulate(sizes, sizes + parts, static_cast<int64_t>(shape->bytes()));
      for (int i = 0; i < parts; ++i) {
        const PageFormat& format = shape->formats[i >= key_parts];
        if (!format.varies()) sizes[i] = static_cast<uint32_t>(format.page_bytes);
      }
      Block block = room.bytes.take(BlockKind::kPage, page_bytes, plan.can_shrink());
      new_pages.push_back(std::make_shared<Page>(memory, plan.index, std::move(block), *shape, sizes));
    }
    pages_.reserve(pages_.size() + new_pages.size());
    page_views_.reserve(pages_.size() + new_pages.size());
  }

  SideTable tables[2] = {tables_[0], tables_[1]};
  for (Side side : {Side::kKeys, Side::kValues}) {
    const int index = static_cast<int>(side);
    if (to_seal == 0 || !plan.codecs[index]->grow) continue;
    Seal seal(*this, plan, rows, side, to_seal, new_body, memory, threads);
    plan.codecs[index]->grow(plan.attention.formats[index], seal, tables[index]);
  }
  threads.run(static_cast<int>(to_seal) * parts, [&](int task) {
    const int64_t page = task / parts;
    const int part = task % parts;
    const Side side = part < key_parts ? Side::kKeys : Side::kValues;
    const int heads_each = plan.attention.formats[static_cast<int>(side)].heads;
    const int kv_head = (side == Side::kKeys ? part : part - key_parts) * heads_each;  // its first
    const uint8_t* head = heads.head(plan.attention, page, static_cast<int>(side), kv_head);
    encode_part(plan, rows, tables[static_cast<int>(side)], sealed + page, side, kv_head, head, *new_pages[page]);
  });

  // From here on nothing throws.
  if (halves) halves_ = std::move(halves);
  if (query_block) queries_.begin(plan.attention, std::move(query_block));
  if (queries_ && to_seal > 0) queries_.end_window(plan.attention);
  for (Side side : {Side::kKeys, Side::kValues}) {
    for (int head = 0; head < plan.attention.kv_heads; ++head) fill_halves(plan, rows, to_seal, side, head);
  }
  for (auto& page : new_pages) {
    page_views_.push_back(&page->view());
    memory.enlist(*page);
    pages_.push_back(std::move(page));
  }
  for (int side = 0; side < 2; ++side) tables_[side] = std::move(tables[side]);
  // By the old length: queries of the tokens appended now still see what they need.
  drop_old_pages(plan, length_);
  length_ = new_length;
}

void SequenceLayer::gather(const LayerPlan& plan, const TokenRows& rows, Side side, int kv_head, int64_t first,
                           int64_t count, float* out, int stride) const {
  const auto d = static_cast<size_t>(plan.attention.head_dim);
  const int64_t window_begin = sealed_pages() * kPageTokens;
  uint16_t half[kMaxHeadDim];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t token = first + i;
    const uint16_t* source = half;
    if (token < body(plan)) {
      source = half_row(plan, side, kv_head, plan.sinks + token - window_begin);
    } else {
      const void* input = input_row(plan, rows, side, plan.sinks + token - length_, kv_head);
      plan.attention.rows->to_half(input, rows.types[static_cast<int>(side)], d, half);
    }
    plan.attention.rows->from_half(source, d, out + static_cast<size_t>(i) * stride);
  }
}

void SequenceLayer::encode_part(const LayerPlan& plan, const TokenRows& rows, const SideTable& table, int64_t page,
                                Side side, int kv_head, const uint8_t* head, Page& out) const {
  const int index = static_cast<int>(side);
  const PageFormat& format = out.view().format(side);
  uint8_t* part = out.part(side, kv_head);
  struct PageRows;
  const int stride = format.heads * format.head_dim;
  float* gathered = thread_scratch<PageRows, float>(static_cast<size_t>(kPageTokens) * stride);
  for (int i = 0; i < format.heads; ++i) {
    gather(plan, rows, side, kv_head + i, page * kPageTokens, kPageTokens, gathered + i * format.head_dim, stride);
  }
  if (plan.codecs[index]->flatten) {
    const auto vectors = side_vectors(table, kv_head, format.head_dim);
    plan.codecs[index]->flatten(format, side_view(table, vectors, page), *plan.match, gathered, part);
  }
  if (head) std::memcpy(part, head, format.head_bytes);
  plan.attention.codecs[index].encode(format, gathered, part);
}

void SequenceLayer::decode_part(const LayerPlan& plan, int64_t page, Side side, int kv_head, float* rows) const {
  const int index = static_cast<int>(side);
  const PageView& view = *page_views_[page - dropped_pages_];
  const PageFormat& format = view.format(side);
  const uint8_t* part = view.part(side, kv_head);
  if (format.heads > 1) {
    struct JointRows;
    const size_t stride = static_cast<size_t>(format.heads) * format.head_dim;
    float* all = thread_scratch<JointRows, float>(kPageTokens * stride);
    plan.attention.codecs[index].decode(format, part, all);
    const float* mine = all + static_cast<size_t>(kv_head % format.heads) * format.head_dim;
    for (int t = 0; t < kPageTokens; ++t) {
      std::copy(mine + t * stride, mine + t * stride + format.head_dim,
                rows + static_cast<size_t>(t) * format.head_dim);
    }
    return;
  }
  plan.attention.codecs[index].decode(format, part, rows);
  if (plan.codecs[index]->restore) {
    const auto vectors = side_vectors(tables_[index], kv_head, format.head_dim);
    plan.codecs[index]->restore(format, side_view(tables_[index], vectors, page), part, rows);
  }
}

// Moves the window of one head behind the newly sealed pages, then adds the new rows that are not in a page.
void SequenceLayer::fill_halves(const LayerPlan& plan, const TokenRows& rows, int64_t new_pages, Side side,
                                int kv_head) {
  const size_t d = static_cast<size_t>(plan.attention.head_dim);
  const int64_t old_begin = sealed_pages() * kPageTokens;
  const int64_t new_begin = old_begin + new_pages * kPageTokens;
  const int64_t kept = body(plan) - new_begin;
  if (new_pages > 0 && kept > 0) {
    std::memmove(half_row(plan, side, kv_head, plan.sinks),
                 half_row(plan, side, kv_head, plan.sinks + new_begin - old_begin),
                 static_cast<size_t>(kept) * d * sizeof(uint16_t));
  }
  for (int64_t token = 0; token < rows.tokens; ++token) {
    const int64_t position = length_ + token;
    const bool sink = position < plan.sinks;
    if (!sink && position < plan.sinks + new_begin) {
      token = plan.sinks + new_begin - length_ - 1;  // the tokens up to there went into pages
      continue;
    }
    const int64_t row = sink ? position : position - new_begin;
    plan.attention.rows->to_half(input_row(plan, rows, side, token, kv_head), rows.types[static_cast<int>(side)], d,
                                 half_row(plan, side, kv_head, row));
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

void SequenceLayer::truncate(const LayerPlan& plan, Memory& memory, int64_t length, float* scratch) {
  if (length >= length_) return;
  const int64_t new_body = std::max<int64_t>(0, length - plan.sinks);
  const int64_t kept_pages = std::min(new_body / kPageTokens, sealed_pages());
  if (kept_pages < sealed_pages()) {
    // The cut goes through a page: what remains of it returns to the window.
    const int64_t reopened = new_body - kept_pages * kPageTokens;
    const size_t d = static_cast<size_t>(plan.attention.head_dim);
    for (Side side : {Side::kKeys, Side::kValues}) {
      if (reopened == 0) break;
      for (int head = 0; head < plan.attention.kv_heads; ++head) {
        {
          const auto pages = memory.read(plan.index);
          decode_part(plan, kept_pages, side, head, scratch);
        }
        // Ranges are rounded up, so a decoded element may pass what append accepts, and what a later page could hold.
        for (int64_t i = 0; i < reopened * plan.attention.head_dim; ++i) {
          scratch[i] = std::clamp(scratch[i], -kMaxMagnitude, kMaxMagnitude);
        }
        plan.attention.rows->to_half(scratch, ElementType::kFloat32, static_cast<size_t>(reopened) * d,
                                     half_row(plan, side, head, plan.sinks));
      }
    }
    const int64_t held = std::max<int64_t>(0, kept_pages - dropped_pages_);
    pages_.resize(static_cast<size_t>(held));
    page_views_.resize(static_cast<size_t>(held));
    dropped_pages_ = std::min(dropped_pages_, kept_pages);
    for (SideTable& table : tables_) table.truncate(kept_pages);
  }
  length_ = length;
}

SequenceLayer SequenceLayer::fork(const LayerPlan& plan, Memory& memory) const {
  SequenceLayer copy;
  if (halves_) {
    copy.halves_ = memory.take(plan.index, BlockKind::kWindow, halves_.bytes());
    std::memcpy(copy.halves_.data(), halves_.data(), static_cast<size_t>(halves_.bytes()));
  }
  if (queries_) copy.queries_ = queries_.copy(memory.take(plan.index, BlockKind::kWindow, queries_.bytes()));
  copy.length_ = length_;
  copy.dropped_pages_ = dropped_pages_;
  copy.pages_ = pages_;
  copy.page_views_ = page_views_;
  copy.tables_[0] = tables_[0];
  copy.tables_[1] = tables_[1];
  return copy;
}

void SequenceLayer::read(const LayerPlan& plan, Side side, int64_t first, int64_t tokens, float* out,
                         float* scratch) const {
  const int d = plan.attention.head_dim;
  const int heads = plan.attention.kv_heads;
  const int64_t sealed_end = plan.sinks + sealed_pages() * kPageTokens;
  for (int head = 0; head < heads; ++head) {
    int64_t decoded_page = -1;
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t position = first + i;
      float* row = out + (static_cast<size_t>(i) * heads + head) * d;
      if (position < plan.sinks || position >= sealed_end) {
        const int64_t half = position < plan.sinks ? position : plan.sinks + position - sealed_end;
        plan.attention.rows->from_half(half_row(plan, side, head, half), static_cast<size_t>(d), row);
        continue;
      }
      const int64_t page = (position - plan.sinks) / kPageTokens;
      if (page != decoded_page) {
        decode_part(plan, page, side, head, scratch);
        decoded_page = page;
      }
      std::memcpy(row, scratch + static_cast<size_t>((position - plan.sinks) % kPageTokens) * d, sizeof(float) * d);
    }
  }
}

}  // namespace kvasir
