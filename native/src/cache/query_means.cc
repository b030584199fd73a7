#include "cache/query_means.h"

#include <utility>

namespace kvasir {

void QueryMeans::begin(const LayerPlan& plan, Engine& engine, Block block) {
  block_ = std::move(block);
  engine.clear_queries(plan, block_.data());
}

void QueryMeans::settle(const LayerPlan& plan, Engine& engine) {
  if (count_ == 0) return;
  engine.settle_queries(plan, seen());
  count_ = 0;
}

QueryMeans QueryMeans::copy(Engine& engine, Block block) const {
  QueryMeans other;
  other.block_ = std::move(block);
  other.count_ = count_;
  engine.copy(block_.data(), other.block_.data(), static_cast<size_t>(block_.bytes()));
  return other;
}

}  // namespace kvasir
