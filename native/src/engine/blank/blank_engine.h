// An engine that holds nothing and computes nothing: a cache over it takes and gives back what it would elsewhere, so
// that its books say what tokens would cost (cache/estimate.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine.h"

namespace kvasir {

class BlankEngine : public Engine {
 public:
  const char* name() const override { return "blank"; }
  std::shared_ptr<Arena> arena() override;
  void prepare(const std::vector<LayerPlan>&) override {}

  void clear_rows(const LayerPlan&, uint8_t*) override {}
  void read_rows(const LayerPlan&, const uint8_t* const*, Side, int, int64_t, int64_t, float*) override {
    nothing_there();
  }
  std::unique_ptr<ReturningRows> take_back(const LayerPlan&, int64_t, std::vector<float> (&&)[2]) override {
    nothing_there();
  }
  void copy_rows(const LayerPlan&, const RowCopy*, int) override {}
  void copy(const uint8_t*, uint8_t*, size_t) override {}

  void clear_queries(const LayerPlan&, uint8_t*) override {}
  using Engine::add_queries;
  void add_queries(const LayerPlan&, uint8_t* const*, const std::vector<QueryRun>&, const float*) override {}
  void read_query_means(const LayerPlan&, const uint8_t*, float*) override { nothing_there(); }
  void settle_queries(const LayerPlan&, uint8_t*) override {}

  std::unique_ptr<Appends> begin_appends(const LayerPlan& plan, const TokenRows& rows,
                                         const std::vector<int64_t>& counts) override;
  std::unique_ptr<LayerState> make_state(const LayerPlan&) override { return nullptr; }
  void reserve(LayerState*, int64_t, const SideTable (&)[2]) override {}
  void update(const LayerPlan&, const SequenceView&, LayerState*) override {}

  const uint8_t* part(const LayerPlan&, const PageView&, Side, int) override { nothing_there(); }
  void shrink(const LayerPlan&, const std::vector<ShrinkingPage>&) override {}

  void download(const uint8_t*, uint8_t*, size_t) override { nothing_there(); }
  void upload(const uint8_t*, uint8_t*, size_t) override {}
  void read_halves(const std::vector<ImageRows>&) override { nothing_there(); }
  void write_halves(const std::vector<ImageRows>&) override {}
  std::vector<uint32_t> read_pages(const std::vector<PageOut>&) override { nothing_there(); }
  std::unique_ptr<PagesIn> pages_in() override { nothing_there(); }
  void write_page(const LayerPlan&, const NewPage&, const uint8_t*) override {}

  using Engine::attend;
  Tiles attend(const LayerPlan&, const AttentionRequest&) override { nothing_there(); }

 private:
  // What only somebody with rows, pages or queries asks for.
  [[noreturn]] static void nothing_there();
};

// Appends of so many tokens, one for each count, without rows.
std::unique_ptr<Appends> make_blank_appends(const LayerPlan& plan, const std::vector<int64_t>& counts);

}  // namespace kvasir
