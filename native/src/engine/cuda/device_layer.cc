#include "engine/cuda/device_layer.h"

#include "engine/cuda/families/family.h"

namespace kvasir::cuda {
namespace {

static_assert(kTileSize == kRowBlockTokens, "a block is a row tile of each kv head");
int blocks_of(int rows) { return (rows + kTileSize - 1) / kTileSize; }

}  // namespace

DeviceLayer::DeviceLayer(const LayerPlan& plan, const DeviceQueue& queue)
    : plan_(&plan),
      queue_(queue),
      sink_blocks_(blocks_of(plan.sinks)),
      window_blocks_(blocks_of(plan.most_window_rows())) {
  if (!plan.key_scaling.empty()) key_scaling_ = queue.uploaded(plan.key_scaling, "a key scaling");
  if (!plan.frequencies.empty()) frequencies_ = queue.uploaded(plan.frequencies, "frequencies of RoPE");
  if (!plan.sink_logits.empty()) sink_logits_ = queue.uploaded(plan.sink_logits, "sink logits");
  family_ = make_family(*this);
}

DeviceLayer::~DeviceLayer() = default;

}  // namespace kvasir::cuda
