#include "kvasir/estimate.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/checks.h"
#include "cache/append_batch.h"
#include "cache/config.h"
#include "cache/layer.h"
#include "cache/memory.h"
#include "cache/plan.h"
#include "engine/blank/blank_engine.h"

namespace kvasir {

struct LayerEstimate {
  int64_t pages = 0;
  int64_t page_bytes = 0;
  int64_t window_bytes = 0;
  int64_t table_bytes = 0;
  int64_t elements = 0;
  int64_t spared_bytes = 0;                  // that pages may do without
  std::map<const void*, int64_t> codebooks;  // bytes, by what tells codebooks apart

  void add(const LayerEstimate& other) {
    pages += other.pages;
    page_bytes += other.page_bytes;
    window_bytes += other.window_bytes;
    table_bytes += other.table_bytes;
    elements += other.elements;
    spared_bytes += other.spared_bytes;
    codebooks.insert(other.codebooks.begin(), other.codebooks.end());
  }
};

struct CacheEstimate::Impl {
  std::vector<LayerEstimate> layers;

  LayerEstimate at(int layer) const {
    if (layer != kAllLayers) {
      if (layer < 0 || layer >= static_cast<int>(layers.size())) {
        refuse("layer " + std::to_string(layer) + " of " + std::to_string(layers.size()));
      }
      return layers[static_cast<size_t>(layer)];
    }
    LayerEstimate total;
    for (const LayerEstimate& each : layers) total.add(each);
    return total;
  }
};

namespace {

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

LayerEstimate estimate_layer(const LayerPlan& plan, Memory& memory, Engine& engine, int64_t prompt, int64_t decoded) {
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
  LayerEstimate estimate;
  const Pool::Usage pages = memory.pool().usage(plan.index, BlockKind::kPage);
  estimate.pages = pages.blocks;
  estimate.page_bytes = pages.bytes;
  estimate.window_bytes = memory.pool().usage(plan.index, BlockKind::kRows).bytes;
  estimate.table_bytes = memory.pool().usage(plan.index, BlockKind::kSideTable).bytes;
  estimate.elements = (layer.length() - layer.first_held(plan)) * plan.elements_per_token();
  if (pages.blocks > 0) estimate.spared_bytes = pages.blocks * spared_by_page(plan);
  for (const auto& model : plan.models) {
    if (model) estimate.codebooks[model->codebook().identity] = model->codebook().bytes;
  }
  return estimate;
}

}  // namespace

CacheEstimate* CacheEstimate::create(const CacheConfig& config, int64_t prompt, int64_t decoded) {
  if (prompt < 0) refuse("tokens of a prompt must not be negative, they are " + std::to_string(prompt));
  if (decoded < 0) refuse("decoded tokens must not be negative, they are " + std::to_string(decoded));
  checked_add(prompt, decoded, "tokens of the prompt and decoded ones");
  const std::vector<LayerPlan> plans = plan_layers(config.impl(), backend_index("auto"));
  const std::unique_ptr<Engine> engine = make_blank_engine();
  Memory memory(plans, *engine, 0, std::vector<int64_t>(plans.size()), ShrinkPolicy::kOldest);
  auto impl = std::make_unique<Impl>();
  for (const LayerPlan& plan : plans) {
    LayerEstimate estimate;
    if (plan.owns_rows()) estimate = estimate_layer(plan, memory, *engine, prompt, decoded);
    impl->layers.push_back(estimate);
  }
  return new CacheEstimate(std::move(impl));
}

CacheEstimate::CacheEstimate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CacheEstimate::~CacheEstimate() = default;
void CacheEstimate::destroy(CacheEstimate* estimate) { delete estimate; }

int64_t CacheEstimate::bytes(int layer) const {
  const LayerEstimate all = impl_->at(layer);
  return all.page_bytes + all.window_bytes + all.table_bytes;
}
int64_t CacheEstimate::pages(int layer) const { return impl_->at(layer).pages; }
int64_t CacheEstimate::page_bytes(int layer) const { return impl_->at(layer).page_bytes; }
int64_t CacheEstimate::window_bytes(int layer) const { return impl_->at(layer).window_bytes; }
int64_t CacheEstimate::table_bytes(int layer) const { return impl_->at(layer).table_bytes; }
int64_t CacheEstimate::elements(int layer) const { return impl_->at(layer).elements; }
int64_t CacheEstimate::least_bytes(int layer) const { return bytes(layer) - impl_->at(layer).spared_bytes; }
int64_t CacheEstimate::codebook_bytes(int layer) const {
  int64_t bytes = 0;
  for (const auto& codebook : impl_->at(layer).codebooks) bytes += codebook.second;
  return bytes;
}

}  // namespace kvasir
