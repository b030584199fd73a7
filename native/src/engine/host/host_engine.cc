#include "engine/host/host_engine.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/thread_pool.h"
#include "engine/host/query_means.h"
#include "engine/taken_rows.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

uint16_t* half_row(const LayerPlan& plan, uint8_t* storage, Side side, int kv_head, int64_t row) {
  return reinterpret_cast<uint16_t*>(storage) + half_row_offset(plan.attention, plan.half_rows(), side, kv_head, row);
}
const uint16_t* half_row(const LayerPlan& plan, const uint8_t* storage, Side side, int kv_head, int64_t row) {
  return half_row(plan, const_cast<uint8_t*>(storage), side, kv_head, row);
}

class HostAppend : public Append {
 public:
  HostAppend(const LayerPlan& plan, const TokenRows& rows) : Append(plan, rows.tokens), input_(plan, rows) {}

  void open(const SequenceView& before, int64_t pages) override {
    before_ = before;
    pages_ = pages;
    window_begin_ = (before.first_page + before.page_count) * kPageTokens;
    body_ = std::max<int64_t>(0, before.length - plan_.sinks);
  }

  void rows(Side side, int kv_head, int64_t first, int64_t count, float* out, int stride) const override {
    const auto d = static_cast<size_t>(plan_.attention.head_dim);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = first + i;
      const uint16_t* source =
          token < body_ ? half_row(plan_, before_.storage, side, kv_head, plan_.sinks + token - window_begin_)
                        : input_row(side, plan_.sinks + token - before_.length, kv_head);
      plan_.attention.rows->from_half(source, d, out + static_cast<size_t>(i) * stride);
    }
  }

  void seal(const std::vector<NewPage>& pages, const PartHeads& heads, const SideTable (&tables)[2],
            LayerState*) override {
    const int parts = plan_.shapes[0].parts();
    for (const NewPage& page : pages) write_table(page);
    ThreadPool::shared().run(static_cast<int>(pages.size()) * parts, [&](int task) {
      const NewPage& page = pages[task / parts];
      const auto [side, kv_head] = place_of(task % parts);
      const uint8_t* head = heads.head(plan_.attention, task / parts, static_cast<int>(side), kv_head);
      encode_part(page, side, kv_head, head, tables[static_cast<int>(side)],
                  page.data + page.view->part_offset(side, kv_head));
    });
  }

  void fill(uint8_t* storage) override {
    for (Side side : {Side::kKeys, Side::kValues}) {
      for (int head = 0; head < plan_.attention.kv_heads; ++head) fill_head(storage, side, head);
    }
  }

 private:
  const uint16_t* input_row(Side side, int64_t token, int kv_head) const {
    const size_t row = static_cast<size_t>(token) * plan_.attention.kv_heads + kv_head;
    return input_.side(side) + row * plan_.attention.head_dim;
  }

  static void write_table(const NewPage& page) {
    const PageShape& shape = *page.view->shape;
    if (!shape.varies()) return;
    std::memset(page.data, 0, shape.table_bytes());
    std::memcpy(page.data, page.view->offsets, sizeof(uint32_t) * (shape.parts() + 1));
  }

  // Moves the window of one head behind the newly sealed pages, then adds the new rows that are not in a page.
  void fill_head(uint8_t* storage, Side side, int kv_head) {
    const auto d = static_cast<size_t>(plan_.attention.head_dim);
    const int64_t new_begin = window_begin_ + pages_ * kPageTokens;
    const int64_t kept = body_ - new_begin;
    if (pages_ > 0 && kept > 0) {
      std::memmove(half_row(plan_, storage, side, kv_head, plan_.sinks),
                   half_row(plan_, storage, side, kv_head, plan_.sinks + new_begin - window_begin_),
                   static_cast<size_t>(kept) * d * sizeof(uint16_t));
    }
    for (int64_t token = 0; token < tokens_; ++token) {
      const int64_t position = before_.length + token;
      const bool sink = position < plan_.sinks;
      if (!sink && position < plan_.sinks + new_begin) {
        token = plan_.sinks + new_begin - before_.length - 1;  // the tokens up to there went into pages
        continue;
      }
      const int64_t row = sink ? position : position - new_begin;
      std::memcpy(half_row(plan_, storage, side, kv_head, row), input_row(side, token, kv_head), d * sizeof(uint16_t));
    }
  }

  const TakenRows input_;
  SequenceView before_ = {};
  int64_t pages_ = 0;
  int64_t window_begin_ = 0;  // body token where the window began
  int64_t body_ = 0;          // body tokens before
};

class HostEngine : public Engine {
 public:
  explicit HostEngine(int backend) : name_(backend_at(backend).name) {}

  const char* name() const override { return name_; }
  std::shared_ptr<Arena> arena() override { return host_arena(); }
  void prepare(const std::vector<LayerPlan>&) override {}

  int64_t row_bytes(const LayerPlan& plan) const override {
    return plan.half_rows() * plan.elements_per_token() * static_cast<int64_t>(sizeof(uint16_t));
  }
  void clear_rows(const LayerPlan&, uint8_t*) override {}
  void read_rows(const LayerPlan& plan, const uint8_t* storage, Side side, int kv_head, int first, int count,
                 float* out) override {
    const size_t elements = static_cast<size_t>(count) * plan.attention.head_dim;
    plan.attention.rows->from_half(half_row(plan, storage, side, kv_head, first), elements, out);
  }
  void write_rows(const LayerPlan& plan, uint8_t* storage, Side side, int kv_head, int first, int count,
                  const float* rows) override {
    const size_t elements = static_cast<size_t>(count) * plan.attention.head_dim;
    plan.attention.rows->to_half(rows, ElementType::kFloat32, elements, half_row(plan, storage, side, kv_head, first));
  }
  void copy(const uint8_t* from, uint8_t* to, size_t bytes) override { std::memcpy(to, from, bytes); }

  void clear_queries(const LayerPlan& plan, uint8_t* sums) override {
    kvasir::clear_queries(plan.attention, QuerySums::at(plan.attention, sums));
  }
  using Engine::add_queries;
  void add_queries(const LayerPlan& plan, uint8_t* const* sums, const std::vector<QueryRun>& runs,
                   const float* queries) override {
    const size_t row = static_cast<size_t>(plan.attention.query_heads) * plan.attention.head_dim;
    for (size_t i = 0; i < runs.size(); ++i) {
      kvasir::add_queries(plan.attention, queries + static_cast<size_t>(runs[i].first) * row, runs[i].tokens,
                          QuerySums::at(plan.attention, sums[i]));
    }
  }
  void read_query_means(const LayerPlan& plan, const SeenQueries& seen, float* out) override {
    kvasir::read_query_means(plan.attention, QuerySums::at(plan.attention, seen.sums), seen.count, out);
  }
  void settle_queries(const LayerPlan& plan, const SeenQueries& seen) override {
    kvasir::settle_queries(plan.attention, QuerySums::at(plan.attention, seen.sums), seen.count);
  }

  std::unique_ptr<Append> begin_append(const LayerPlan& plan, const TokenRows& rows) override {
    if (rows.on_device) {
      throw Error(ErrorCode::kUnavailable, std::string("backend ") + name_ + " has no device memory to append from");
    }
    return std::make_unique<HostAppend>(plan, rows);
  }
  std::unique_ptr<LayerState> make_state(const LayerPlan&) override { return nullptr; }
  void reserve(LayerState*, int64_t) override {}
  void update(const LayerPlan&, const SequenceView&, LayerState*) override {}

  const uint8_t* part(const LayerPlan&, const PageView& page, Side side, int kv_head) override {
    return page.part(side, kv_head);
  }
  void shrink(const LayerPlan& plan, const std::vector<ShrinkingPage>& pages) override {
    ThreadPool::shared().run(static_cast<int>(pages.size()), [&](int i) {
      shrink_page(plan, pages[i]);
      if (pages[i].offsets) std::memcpy(pages[i].data, pages[i].offsets, sizeof(uint32_t) * (pages[i].to->parts() + 1));
    });
  }

  using Engine::attend;
  Tiles attend(const LayerPlan& plan, const AttentionRequest& request) override {
    const int64_t tiles = kvasir::attend(request, ThreadPool::shared());
    return {tiles, plan.fallback ? tiles : 0};
  }

 private:
  const char* const name_;
};

}  // namespace

std::unique_ptr<Engine> make_host_engine(int backend) { return std::make_unique<HostEngine>(backend); }

}  // namespace kvasir
