#include "cache/query_means.h"

#include <utility>

namespace kvasir {

void QueryMeans::begin(const LayerPlan& plan, Engine& engine, Block block) {
  block_ = std::move(block);
  engine.clear_queries(plan, block_.data());
}

void QueryMeans::settle(const LayerPlan& plan, Engine& engine) { engine.settle_queries(plan, block_.data()); }

QueryMeans QueryMeans::copy(Engine& engine, Block block) const {
  QueryMeans other;
  other.block_ = std::move(block);
  engine.copy(block_.data(), other.block_.data(), static_cast<size_t>(block_.bytes()));
  return other;
}

std::vector<uint8_t> QueryMeans::read(Engine& engine) const {
  std::vector<uint8_t> bytes(static_cast<size_t>(block_.bytes()));
  if (block_) engine.download(block_.data(), bytes.data(), bytes.size());
  return bytes;
}

void QueryMeans::restore(Engine& engine, Block block, const std::vector<uint8_t>& bytes) {
  engine.upload(bytes.data(), block.data(), bytes.size());
  block_ = std::move(block);
}

}  // namespace kvasir
