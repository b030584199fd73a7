// What of a step an engine itself takes: rows that are checked, rounded and written to where they belong, and attention
// on them, by the same verbs that a cache calls, without its books, locks and copies.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "cache/plan.h"
#include "engine/engines.h"
#include "kvasir/kvasir.h"

namespace bench {

class StepEngine {
 public:
  // Sequences of `length` tokens, all of them in one block of 16-bit rows.
  StepEngine(const kvasir::CacheConfig& config, const std::string& backend, int sequences, int64_t length)
      : chosen_(kvasir::make_engine(backend)),
        plans_(kvasir::plan_layers(config.impl(), chosen_.kernels)),
        counts_(static_cast<size_t>(sequences), 1) {
    engine().prepare(plans_);
    const auto& layer = plans_[0].attention;
    rows_.assign(counts_.size() * layer.kv_heads * layer.head_dim, 0.5f);
    queries_.assign(counts_.size() * layer.query_heads * layer.head_dim, 0.25f);
    outputs_.resize(queries_.size());
    const auto bytes = static_cast<size_t>(plans_[0].row_block_bytes());
    const size_t blocks = plans_.size() * counts_.size();
    memory_ = kvasir::make_aligned<uint8_t>(blocks * bytes);
    std::memset(memory_.get(), 0, blocks * bytes);
    for (size_t i = 0; i < blocks; ++i) blocks_.push_back(memory_.get() + i * bytes);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      kvasir::SequenceView view = {};
      view.length = length;
      view.window = static_cast<int>(length);
      view.window_blocks = &blocks_[i];
      view.tables[0] = view.tables[1] = &no_table_;
      views_.push_back(view);
    }
    for (size_t i = 0; i < counts_.size(); ++i) runs_.push_back({static_cast<int64_t>(i), 1});
  }

  // Microseconds of all layers, the median of `steps`.
  struct Times {
    double append, attend;
  };
  Times run(int steps) {
    std::vector<double> times[2];
    for (int i = 0; i < steps; ++i) {
      times[0].push_back(timed([&](const kvasir::LayerPlan& plan) { append(plan); }));
      times[1].push_back(timed([&](const kvasir::LayerPlan& plan) { attend(plan); }));
    }
    for (auto& each : times) std::sort(each.begin(), each.end());
    return {times[0][times[0].size() / 2], times[1][times[1].size() / 2]};
  }

 private:
  kvasir::Engine& engine() { return *chosen_.engine; }
  size_t first(const kvasir::LayerPlan& plan) const { return static_cast<size_t>(plan.index) * counts_.size(); }

  // Over the newest token.
  void append(const kvasir::LayerPlan& plan) {
    kvasir::TokenRows rows;
    const auto& layer = plan.attention;
    for (kvasir::RowsView& side : rows.sides) {
      side = {rows_.data(), kvasir::ElementType::kFloat32, int64_t{layer.kv_heads} * layer.head_dim, layer.head_dim};
    }
    rows.tokens = static_cast<int64_t>(counts_.size());
    const auto appends = engine().begin_appends(plan, rows, counts_);
    targets_.clear();
    for (size_t i = 0; i < counts_.size(); ++i) {
      kvasir::SequenceView before = views_[first(plan) + i];
      before.length -= 1;
      before.window -= 1;
      (*appends)[static_cast<int>(i)].open(before, 0);
      targets_.push_back({nullptr, &blocks_[first(plan) + i]});
    }
    appends->fill(targets_.data());
    appends->finish(views_.data() + first(plan));
  }

  void attend(const kvasir::LayerPlan& plan) {
    const kvasir::AttentionRequest request = {&plan.attention, views_.data() + first(plan),
                                              runs_.data(),    static_cast<int>(counts_.size()),
                                              queries_.data(), outputs_.data(),
                                              nullptr,         false};
    engine().attend(plan, request);
  }

  template <class Call>
  double timed(const Call& call) const {
    const auto start = std::chrono::steady_clock::now();
    for (const kvasir::LayerPlan& plan : plans_) call(plan);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }

  const kvasir::ChosenEngine chosen_;
  const std::vector<kvasir::LayerPlan> plans_;
  const std::vector<int64_t> counts_;
  const kvasir::SideTable no_table_;
  std::vector<float> rows_, queries_, outputs_;
  kvasir::AlignedArray<uint8_t> memory_;
  std::vector<uint8_t*> blocks_;
  std::vector<kvasir::SequenceView> views_;
  std::vector<kvasir::QueryRun> runs_;
  std::vector<kvasir::Appends::Target> targets_;
};

}  // namespace bench
