// What a device knows of one layer: how many blocks of 16-bit rows it has, what launches read beside pages, and the
// family that knows its pages.
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

// The blocks of a SequenceView as kernels take them.
inline RowList row_list(const uint8_t* const* blocks) { return const_cast<RowList>(blocks); }

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

  // Blocks of 16-bit rows that a sequence has at most: those of the sinks, then those of the window.
  int sink_blocks() const { return sink_blocks_; }
  int row_blocks() const { return sink_blocks_ + window_blocks_; }

  // In device memory; null where the layer has none.
  const float* key_scaling() const { return key_scaling_.as<float>(); }
  const double* frequencies() const { return frequencies_.as<double>(); }
  const float* sink_logits() const { return sink_logits_.as<float>(); }

 private:
  const LayerPlan* plan_;
  const DeviceQueue queue_;
  const int sink_blocks_, window_blocks_;
  DeviceScratch key_scaling_, frequencies_, sink_logits_;
  std::unique_ptr<PageFamily> family_;
};

}  // namespace kvasir::cuda
