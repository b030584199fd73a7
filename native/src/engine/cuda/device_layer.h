// What a device knows of one layer: where its 16-bit rows lie, what launches read beside pages, and the family that
// knows its pages.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/cuda/device_queue.h"
#include "engine/layer_plan.h"
#include "kernels/cuda/layout/fragments.h"
#include "kernels/cuda/rows/query_sums.h"
#include "kernels/cuda/rows/rows.h"

namespace kvasir::cuda {

class PageFamily;

class DeviceLayer {
 public:
  DeviceLayer(const LayerPlan& plan, const DeviceQueue& queue);
  ~DeviceLayer();
  DeviceLayer(const DeviceLayer&) = delete;
  DeviceLayer& operator=(const DeviceLayer&) = delete;

  const LayerPlan& plan() const { return *plan_; }
  const DeviceQueue& queue() const { return queue_; }
  PageFamily& family() const { return *family_; }
  const PageFormat& format(Side side) const { return plan_->attention.formats[static_cast<int>(side)]; }
  RowShape row_shape() const { return {plan_->attention.kv_heads, plan_->attention.head_dim}; }
  QueryShape query_shape() const {
    return {plan_->attention.kv_heads, plan_->attention.group(), plan_->attention.head_dim};
  }
  // What a page is now: its number in LayerPlan::shapes.
  int level_of(const PageShape& shape) const { return static_cast<int>(&shape - plan_->shapes.data()); }

  // The 16-bit rows of a sequence: tiles of the sinks, then of the window.
  int64_t row_bytes() const { return head_stride() * plan_->attention.kv_heads; }
  int64_t head_stride() const { return int64_t{sink_tiles_ + window_tiles_} * tile_bytes(); }
  int64_t window_offset() const { return int64_t{sink_tiles_} * tile_bytes(); }
  // Where a row of LayerPlan's order stands.
  int64_t tile_row(int64_t row) const {
    return row < plan_->sinks ? row : int64_t{sink_tiles_} * kTileSize + row - plan_->sinks;
  }
  RowTiles tiles(uint8_t* storage) const { return {storage, head_stride()}; }

  // In device memory; null where the layer has none.
  const float* key_scaling() const { return key_scaling_.as<float>(); }
  const double* frequencies() const { return frequencies_.as<double>(); }
  const float* sink_logits() const { return sink_logits_.as<float>(); }

 private:
  int64_t tile_bytes() const { return RowTileLayout{plan_->attention.head_dim}.bytes(); }

  const LayerPlan* plan_;
  const DeviceQueue queue_;
  const int sink_tiles_, window_tiles_;
  DeviceScratch key_scaling_, frequencies_, sink_logits_;
  std::unique_ptr<PageFamily> family_;
};

}  // namespace kvasir::cuda
