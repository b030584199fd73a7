#include "kvasir/estimate.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "base/checks.h"
#include "cache/append_batch.h"
#include "cache/config.h"
#include "cache/layer.h"
#include "cache/memory.h"
#include "cache/plan.h"
#include "cache/stats.h"
#include "engine/blank/blank_engine.h"

namespace kvasir {

struct CacheEstimate::Impl {
  CacheStats::Impl stats;
  std::vector<int64_t> spared_bytes;  // of each layer: that pages may do without

  int64_t spared(int layer) const {
    if (layer != kAllLayers) return spared_bytes[static_cast<size_t>(layer)];
    return std::accumulate(spared_bytes.begin(), spared_bytes.end(), int64_t{0});
  }
};

namespace {

// More would take minutes, and memory for every page: appends are gone through, those of single tokens page by page.
constexpr int64_t kMostTokens = int64_t{1} << 28, kMostDecoded = int64_t{1} << 22;

// What a page of a layer may be less than it begins as.
int64_t spared_by_page(const LayerPlan& plan) {
  auto spared = static_cast<int64_t>(plan.shapes.front().bytes()) - static_cast<int64_t>(plan.shapes.back().bytes());
  for (int side = 0; side < 2; ++side) {
    const PageFormat& format = plan.attention.formats[side];
    if (!format.varies()) continue;
    const Codec::PartRange range = plan.codecs[side]->part_range(format);
    spared += static_cast<int64_t>(range.most - range.least) * plan.attention.kv_heads;
  }
  return spared;
}

LayerStats estimate_layer(const LayerPlan& plan, Memory& memory, Engine& engine, int64_t prompt, int64_t decoded) {
  SequenceLayer layer;
  const auto append = [&](int64_t tokens) {
    if (tokens > 0) append_batch(plan, memory, engine, {&layer}, *make_blank_appends(plan, {tokens}));
  };
  if (plan.wants_queries && prompt + decoded > 0) {
    layer.queries().begin(plan, engine, memory.take(plan.index, BlockKind::kRows, QuerySums::bytes(plan.attention)));
  }
  append(prompt);
  // Tokens that come one by one seal one page at a time, which is all that matters of them but for the last.
  for (int64_t left = decoded; left > 0;) {
    const int64_t step = left == 1 ? 1 : std::min<int64_t>(kPageTokens, left - 1);
    append(step);
    left -= step;
  }
  LayerStats stats;
  const Pool::Usage pages = memory.pool().usage(plan.index, BlockKind::kPage);
  stats.pages = pages.blocks;
  stats.page_bytes = pages.bytes;
  stats.window_bytes = memory.pool().usage(plan.index, BlockKind::kRows).bytes;
  stats.table_bytes = memory.pool().usage(plan.index, BlockKind::kSideTable).bytes;
  stats.elements = (layer.length() - layer.first_held(plan)) * plan.elements_per_token();
  for (const auto& model : plan.models) {
    if (model) stats.codebooks[model->codebook().identity] = model->codebook().bytes;
  }
  return stats;
}

}  // namespace

CacheEstimate* CacheEstimate::create(const CacheConfig& config, int64_t prompt, int64_t decoded) {
  if (prompt < 0) refuse("tokens of a prompt must not be negative, they are " + std::to_string(prompt));
  if (decoded < 0) refuse("decoded tokens must not be negative, they are " + std::to_string(decoded));
  if (prompt > kMostTokens || decoded > kMostDecoded) {
    refuse("an estimate is of up to " + std::to_string(kMostTokens) + " tokens of a prompt and " +
           std::to_string(kMostDecoded) + " decoded ones, not " + std::to_string(prompt) + " and " +
           std::to_string(decoded));
  }
  const std::vector<LayerPlan> plans = plan_layers(config.impl(), backend_index("auto"));
  BlankEngine engine;
  Memory memory(plans, engine, 0, std::vector<int64_t>(plans.size()), ShrinkPolicy::kOldest);
  auto impl = std::make_unique<Impl>();
  for (const LayerPlan& plan : plans) {
    LayerStats stats;
    if (plan.owns_rows()) stats = estimate_layer(plan, memory, engine, prompt, decoded);
    impl->spared_bytes.push_back(stats.pages > 0 ? stats.pages * spared_by_page(plan) : 0);
    impl->stats.layers.push_back(std::move(stats));
  }
  return new CacheEstimate(std::move(impl));
}

CacheEstimate::CacheEstimate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CacheEstimate::~CacheEstimate() = default;
void CacheEstimate::destroy(CacheEstimate* estimate) { delete estimate; }

int64_t CacheEstimate::bytes(int layer) const { return impl_->stats.at(layer).bytes(); }
int64_t CacheEstimate::pages(int layer) const { return impl_->stats.at(layer).pages; }
int64_t CacheEstimate::page_bytes(int layer) const { return impl_->stats.at(layer).page_bytes; }
int64_t CacheEstimate::window_bytes(int layer) const { return impl_->stats.at(layer).window_bytes; }
int64_t CacheEstimate::table_bytes(int layer) const { return impl_->stats.at(layer).table_bytes; }
int64_t CacheEstimate::elements(int layer) const { return impl_->stats.at(layer).elements; }
int64_t CacheEstimate::least_bytes(int layer) const {
  const int64_t all = bytes(layer);  // which looks at the number
  return all - impl_->spared(layer);
}
int64_t CacheEstimate::codebook_bytes(int layer) const { return impl_->stats.at(layer).codebook_bytes(); }

}  // namespace kvasir
