#include "engine/host/host_engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "base/crc32c.h"
#include "base/thread_pool.h"
#include "engine/host/query_means.h"
#include "engine/taken_rows.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

uint16_t* half_row(const LayerPlan& plan, uint8_t* const* blocks, Side side, int kv_head, int64_t row) {
  return const_cast<uint16_t*>(kvasir::half_row(plan.attention, blocks, side, kv_head, row));
}

// verb(row of a block, first, count): rows first .. first + count - 1, counted from the first of them all, lie there.
template <class Verb>
void for_runs(int64_t first, int64_t count, const Verb& verb) {
  for (int64_t done = 0; done < count;) {
    const int64_t row = first + done;
    const int64_t run = std::min(count - done, kRowBlockTokens - row % kRowBlockTokens);
    verb(row, done, static_cast<size_t>(run));
    done += run;
  }
}

class HostAppend : public Append {
 public:
  // Its tokens are those of `input` from `first` on.
  HostAppend(const LayerPlan& plan, const TakenRows& input, int64_t first, int64_t tokens)
      : Append(plan, tokens), input_(input), first_(first) {}

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
          token < body_ ? kvasir::half_row(plan_.attention, before_.window_blocks, side, kv_head, token - window_begin_)
                        : input_row(side, plan_.sinks + token - before_.length, kv_head);
      plan_.attention.rows->from_half(source, d, out + static_cast<size_t>(i) * stride);
    }
  }

  void seal(const std::vector<NewPage>& pages, const PartHeads& heads, const SideTable (&tables)[2],
            LayerState*) override {
    const int parts = plan_.shapes[0].parts();
    for (const NewPage& page : pages) write_table(page);
    ThreadPool::current().run(static_cast<int>(pages.size()) * parts, [&](int task) {
      const NewPage& page = pages[task / parts];
      const auto [side, kv_head] = place_of(task % parts);
      const uint8_t* head = heads.head(plan_.attention, task / parts, static_cast<int>(side), kv_head);
      encode_part(page, side, kv_head, head, tables[static_cast<int>(side)],
                  page.data + page.view->part_offset(side, kv_head));
    });
  }

  void fill(const Appends::Target& target) const {
    const int64_t new_sinks = std::clamp<int64_t>(plan_.sinks - before_.length, 0, tokens_);
    for (int64_t token = 0; token < new_sinks; ++token) fill_row(token, target.sinks, before_.length + token);
    // The tokens up to there went into pages.
    const int64_t window = plan_.sinks + window_begin_ + pages_ * kPageTokens;
    for (int64_t token = std::max(new_sinks, window - before_.length); token < tokens_; ++token) {
      fill_row(token, target.window, before_.length + token - window);
    }
  }

 private:
  const uint16_t* input_row(Side side, int64_t token, int kv_head) const {
    const size_t row = static_cast<size_t>(first_ + token) * plan_.attention.kv_heads + kv_head;
    return input_.side(side) + row * plan_.attention.head_dim;
  }

  static void write_table(const NewPage& page) {
    const PageShape& shape = *page.view->shape;
    if (!shape.varies()) return;
    std::memset(page.data, 0, shape.table_bytes());
    std::memcpy(page.data, page.view->offsets, sizeof(uint32_t) * (shape.parts() + 1));
  }

  void fill_row(int64_t token, uint8_t* const* blocks, int64_t row) const {
    const auto d = static_cast<size_t>(plan_.attention.head_dim);
    for (Side side : {Side::kKeys, Side::kValues}) {
      for (int head = 0; head < plan_.attention.kv_heads; ++head) {
        std::memcpy(half_row(plan_, blocks, side, head, row), input_row(side, token, head), d * sizeof(uint16_t));
      }
    }
  }

  const TakenRows& input_;
  const int64_t first_;
  SequenceView before_ = {};
  int64_t pages_ = 0;
  int64_t window_begin_ = 0;  // body token where the window began
  int64_t body_ = 0;          // body tokens before
};

class HostAppends : public Appends {
 public:
  HostAppends(const LayerPlan& plan, const TokenRows& rows, const std::vector<int64_t>& counts) : input_(plan, rows) {
    appends_.reserve(counts.size());
    int64_t first = 0;
    for (const int64_t tokens : counts) {
      appends_.emplace_back(plan, input_, first, tokens);
      first += tokens;
    }
  }

  Append& operator[](int index) override { return appends_[static_cast<size_t>(index)]; }

  void fill(const Target* targets) override {
    const auto count = static_cast<int>(appends_.size());
    const auto one = [&](int i) { appends_[static_cast<size_t>(i)].fill(targets[i]); };
    if (count > 1 && input_.elements() >= kWorthThreads) {
      ThreadPool::current().run(count, one);
    } else {
      for (int i = 0; i < count; ++i) one(i);
    }
  }

  void finish(const SequenceView*) override {}

 private:
  static constexpr size_t kWorthThreads = size_t{1} << 16;  // elements; fewer are copied before a thread wakes up

  const TakenRows input_;
  std::vector<HostAppend> appends_;
};

// verb(rows of an image, rows of a block, bytes): all of them, run by run.
template <class Verb>
void for_image_rows(const std::vector<ImageRows>& rows, const Verb& verb) {
  ThreadPool::current().run(static_cast<int>(rows.size()), [&](int i) {
    const ImageRows& each = rows[static_cast<size_t>(i)];
    const auto d = static_cast<size_t>(each.plan->attention.head_dim);
    uint16_t* image = each.halves;
    for (const Side side : {Side::kKeys, Side::kValues}) {
      for (int head = 0; head < each.plan->attention.kv_heads; ++head, image += static_cast<size_t>(each.count) * d) {
        for_runs(0, each.count, [&](int64_t row, int64_t done, size_t run) {
          verb(image + static_cast<size_t>(done) * d, half_row(*each.plan, each.blocks, side, head, row),
               run * d * sizeof(uint16_t));
        });
      }
    }
  });
}

class HostPagesIn : public PagesIn {
 public:
  void begin(const uint8_t* image, int64_t) override { image_ = image; }
  std::optional<Damage> write(const std::vector<Page>& pages) override {
    std::atomic<const Page*> damaged{nullptr};
    ThreadPool::current().run(static_cast<int>(pages.size()), [&](int i) {
      const Page& each = pages[static_cast<size_t>(i)];
      if (crc32c_copy(each.page.data, image_ + each.offset, each.page.view->bytes()) != each.crc) damaged = &each;
    });
    const Page* page = damaged;
    return page ? std::optional<Damage>({page->plan->index, page->page.number}) : std::nullopt;
  }
  void end() noexcept override {}
  std::optional<Damage> finish() override { return std::nullopt; }

 private:
  const uint8_t* image_ = nullptr;
};

class HostEngine : public Engine {
 public:
  explicit HostEngine(int backend) : name_(backend_at(backend).name) {}

  const char* name() const override { return name_; }
  std::shared_ptr<Arena> arena() override { return host_arena(); }
  void prepare(const std::vector<LayerPlan>&) override {}

  void clear_rows(const LayerPlan&, uint8_t*) override {}
  void read_rows(const LayerPlan& plan, const uint8_t* const* blocks, Side side, int kv_head, int64_t first,
                 int64_t count, float* out) override {
    const auto d = static_cast<size_t>(plan.attention.head_dim);
    for_runs(first, count, [&](int64_t row, int64_t done, size_t run) {
      plan.attention.rows->from_half(kvasir::half_row(plan.attention, blocks, side, kv_head, row), run * d,
                                     out + static_cast<size_t>(done) * d);
    });
  }
  std::unique_ptr<ReturningRows> take_back(const LayerPlan& plan, int64_t count,
                                           std::vector<float> (&&rows)[2]) override {
    class HostRows : public ReturningRows {
     public:
      HostRows(const LayerPlan& plan, int64_t count, std::vector<float> (&&rows)[2])
          : plan_(plan), count_(count), rows_{std::move(rows[0]), std::move(rows[1])} {}
      void write(uint8_t* const* blocks) override {
        const auto d = static_cast<size_t>(plan_.attention.head_dim);
        for (const Side side : {Side::kKeys, Side::kValues}) {
          for (int head = 0; head < plan_.attention.kv_heads; ++head) {
            const float* from = rows_[static_cast<int>(side)].data() + static_cast<size_t>(head * count_) * d;
            for_runs(0, count_, [&](int64_t row, int64_t done, size_t run) {
              plan_.attention.rows->to_half(from + static_cast<size_t>(done) * d, ElementType::kFloat32, run * d,
                                            half_row(plan_, blocks, side, head, row));
            });
          }
        }
      }

     private:
      const LayerPlan& plan_;
      const int64_t count_;
      const std::vector<float> rows_[2];
    };
    return std::make_unique<HostRows>(plan, count, std::move(rows));
  }
  void copy_rows(const LayerPlan& plan, const RowCopy* copies, int count) override {
    const auto bytes = static_cast<size_t>(plan.attention.head_dim) * sizeof(uint16_t);
    for (int i = 0; i < count; ++i) {
      const RowCopy& each = copies[i];
      for (Side side : {Side::kKeys, Side::kValues}) {
        for (int head = 0; head < plan.attention.kv_heads; ++head) {
          std::memmove(half_row(plan, &each.to, side, head, each.to_row),
                       kvasir::half_row(plan.attention, &each.from, side, head, each.from_row), bytes);
        }
      }
    }
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
  void read_query_means(const LayerPlan& plan, const uint8_t* sums, float* out) override {
    kvasir::read_query_means(plan.attention, QuerySums::at(plan.attention, const_cast<uint8_t*>(sums)), out);
  }
  void settle_queries(const LayerPlan& plan, uint8_t* sums) override {
    kvasir::settle_queries(plan.attention, QuerySums::at(plan.attention, sums));
  }

  std::unique_ptr<Appends> begin_appends(const LayerPlan& plan, const TokenRows& rows,
                                         const std::vector<int64_t>& counts) override {
    if (rows.on_device) {
      throw Error(ErrorCode::kUnavailable, std::string("backend ") + name_ + " has no device memory to append from");
    }
    return std::make_unique<HostAppends>(plan, rows, counts);
  }
  std::unique_ptr<LayerState> make_state(const LayerPlan&) override { return nullptr; }
  void reserve(LayerState*, int64_t, const SideTable (&)[2]) override {}
  void update(const LayerPlan&, const SequenceView&, LayerState*) override {}

  const uint8_t* part(const LayerPlan&, const PageView& page, Side side, int kv_head) override {
    return page.part(side, kv_head);
  }
  void shrink(const LayerPlan& plan, const std::vector<ShrinkingPage>& pages) override {
    ThreadPool::current().run(static_cast<int>(pages.size()), [&](int i) {
      shrink_page(plan, pages[i]);
      if (pages[i].offsets) std::memcpy(pages[i].data, pages[i].offsets, sizeof(uint32_t) * (pages[i].to->parts() + 1));
    });
  }

  void download(const uint8_t* from, uint8_t* to, size_t bytes) override { std::memcpy(to, from, bytes); }
  void upload(const uint8_t* from, uint8_t* to, size_t bytes) override { std::memcpy(to, from, bytes); }
  void read_halves(const std::vector<ImageRows>& rows) override {
    for_image_rows(rows, [](uint16_t* image, uint16_t* block, size_t bytes) { std::memcpy(image, block, bytes); });
  }
  void write_halves(const std::vector<ImageRows>& rows) override {
    for_image_rows(rows, [](uint16_t* image, uint16_t* block, size_t bytes) { std::memcpy(block, image, bytes); });
  }
  std::vector<uint32_t> read_pages(const std::vector<PageOut>& pages) override {
    std::vector<uint32_t> sums(pages.size());
    ThreadPool::current().run(static_cast<int>(pages.size()), [&](int i) {
      const PageOut& each = pages[static_cast<size_t>(i)];
      sums[static_cast<size_t>(i)] = crc32c_copy(each.out, each.page->data, each.page->bytes());
    });
    return sums;
  }
  std::unique_ptr<PagesIn> pages_in() override { return std::make_unique<HostPagesIn>(); }
  void write_page(const LayerPlan&, const NewPage& page, const uint8_t* from) override {
    std::memcpy(page.data, from, page.view->bytes());
  }

  using Engine::attend;
  Tiles attend(const LayerPlan& plan, const AttentionRequest& request) override {
    const int64_t tiles = kvasir::attend(request, ThreadPool::current());
    return {tiles, plan.fallback ? tiles : 0};
  }

 private:
  const char* const name_;
};

}  // namespace

std::unique_ptr<Engine> make_host_engine(int backend) { return std::make_unique<HostEngine>(backend); }

}  // namespace kvasir
