// What an engine is told of pages while other threads shrink them. The engine here does as one with a device: it lists
// the pages of a layer when it is told, and again when it knows of a shrink that the list is older than.
#include <atomic>
#include <chrono>
#include <thread>

#include "cache/append_batch.h"
#include "cache/layer.h"
#include "cache/memory.h"
#include "cache/plan.h"
#include "codecs/codec.h"
#include "engine/blank/blank_engine.h"
#include "kernels/kernels.h"
#include "support/caches.h"
#include "support/doctest.h"

using namespace kvasir;

namespace {

struct Listed : LayerState {
  uint64_t epoch = ~uint64_t{0};
  std::vector<const PageShape*> shapes;
};

class ListingEngine : public BlankEngine {
 public:
  std::unique_ptr<Appends> begin_appends(const LayerPlan& plan, const TokenRows&,
                                         const std::vector<int64_t>& counts) override {
    class ListingAppends : public Appends {
     public:
      ListingAppends(ListingEngine& engine, std::unique_ptr<Appends> blank, size_t count)
          : engine_(engine), blank_(std::move(blank)), count_(count) {}
      Append& operator[](int index) override { return (*blank_)[index]; }
      void fill(const Target* targets) override { blank_->fill(targets); }
      void finish(const SequenceView* views) override {
        for (size_t i = 0; i < count_; ++i) engine_.list(views[i]);
      }

     private:
      ListingEngine& engine_;
      const std::unique_ptr<Appends> blank_;
      const size_t count_;
    };
    return std::make_unique<ListingAppends>(*this, make_blank_appends(plan, counts), counts.size());
  }
  std::unique_ptr<LayerState> make_state(const LayerPlan&) override { return std::make_unique<Listed>(); }
  void update(const LayerPlan&, const SequenceView& view, LayerState*) override { list(view); }
  void shrink(const LayerPlan&, const std::vector<ShrinkingPage>&) override {
    ++epoch_;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // pages have their old shapes until this returns
  }

  // Whether attention would read pages as they are.
  bool right(const SequenceView& view) const {
    const auto& listed = static_cast<const Listed&>(*view.state);
    if (listed.epoch != epoch_) return true;  // it would list them anew
    bool right = static_cast<int64_t>(listed.shapes.size()) == view.page_count;
    for (int64_t i = 0; right && i < view.page_count; ++i) {
      right = listed.shapes[static_cast<size_t>(i)] == view.pages[i]->shape;
    }
    return right;
  }

 private:
  void list(const SequenceView& view) const {
    auto& listed = static_cast<Listed&>(*view.state);
    const uint64_t epoch = epoch_;
    if (listed.epoch == epoch && static_cast<int64_t>(listed.shapes.size()) == view.page_count) return;
    listed.epoch = epoch;
    listed.shapes.clear();
    for (int64_t i = 0; i < view.page_count; ++i) listed.shapes.push_back(view.pages[i]->shape);
  }

  std::atomic<uint64_t> epoch_{0};
};

}  // namespace

TEST_CASE("listing: pages that another sequence's append shrinks are never listed half shrunk") {
  constexpr int kPages = 60;
  const support::ConfigPointer config(CacheConfig::create(1));
  config->set_heads(0, 2, 2, 32);
  for (const Side side : {Side::kKeys, Side::kValues}) config->set_codec(0, side, "progressive", 16);
  config->set_window(16);
  const std::vector<LayerPlan> plans = plan_layers(config->impl(), backend_index("auto"));
  const LayerPlan& plan = plans[0];
  const auto page = static_cast<int64_t>(plan.shapes[0].bytes());
  ListingEngine engine;
  const auto append = [&](Memory& memory, SequenceLayer& layer, int64_t tokens) {
    append_batch(plan, memory, engine, {&layer}, *engine.begin_appends(plan, {}, {tokens}));
  };
  // The window of both, and a page more than the longer one has.
  Memory memory(plans, engine, (kPages + 1) * page + 24 * plan.row_block_bytes(), {0}, ShrinkPolicy::kOldest);
  SequenceLayer longer;
  // One token more takes no block, so that nothing holds it up.
  append(memory, longer, plan.sinks + kPages * kPageTokens + plan.window + 5);
  std::atomic<bool> done{false};
  std::thread other([&] {
    SequenceLayer layer;
    try {
      while (true) {
        append(memory, layer, kPageTokens);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the locks are not fair to who waits
      }
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBudgetExceeded);
    }
    done = true;
  });
  int64_t seen = 0, wrong = 0;
  const auto look = [&](const SequenceLayer& layer) {
    const auto pages = memory.read(0);
    wrong += !engine.right(layer.view(plan));
    ++seen;
  };
  while (!done) {
    const int64_t length = longer.length();
    try {
      append(memory, longer, 1);
      look(longer);
      longer.truncate(plan, memory, engine, length, longer.prepare_cut(plan, memory, engine, length, nullptr));
      look(longer);
      look(longer.fork(plan, memory, engine));
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBudgetExceeded);
    }
  }
  other.join();
  CHECK(seen > 0);
  CHECK_MESSAGE(wrong == 0, wrong, " of ", seen);
  CHECK(memory.shrinks(0).count > kPages);
}
