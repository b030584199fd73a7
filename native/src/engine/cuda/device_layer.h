// What a device knows of one layer: how its pages lie there, and what launches need beside them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/cuda/commvq_sealer.h"
#include "engine/cuda/device_arena.h"
#include "engine/layer_plan.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/commvq/attend.h"
#include "kernels/cuda/layout/side_format.h"
#include "kernels/cuda/rows/query_sums.h"
#include "kernels/cuda/rows/rows.h"
#include "kernels/cuda/tiered/attend.h"

namespace kvasir::cuda {

// Which kernels a side's pages need.
enum class SideKind {
  kCodes,    // f16, uniform, progressive: written, shrunk and read on the device
  kPattern,  // codes of residuals, labels, and a table of vectors
  kTiered,
  kCommVq,
};

// How the pages of a layer lie in device memory.
enum class PageFamily {
  kFragments,  // head blocks, which fused attention reads; before each, where there are any, labels
  kCommVq,     // docs/format.md, on both sides of codec commvq
  kTiered,     // tiered keys and uniform values, as tiered/layout.h has them
  kCanonical,  // docs/format.md
};

class DeviceLayer {
 public:
  DeviceLayer(const LayerPlan& plan, DeviceArena& arena, cudaStream_t stream);

  const LayerPlan& plan() const { return *plan_; }
  RowShape row_shape() const { return {plan_->attention.kv_heads, plan_->attention.head_dim}; }
  PageFamily family() const { return family_; }
  SideKind kind(Side side) const { return kinds_[static_cast<int>(side)]; }
  bool labels() const { return family_ == PageFamily::kFragments && kinds_[0] == SideKind::kPattern; }
  // Both sides of a page of that shape; kNone where another codec's kernels have to read it.
  const SideFormat* sides(const PageShape& shape) const { return sides_[level_of(shape)].data(); }
  int level_of(const PageShape& shape) const { return static_cast<int>(&shape - plan_->shapes.data()); }
  // Of a head block, labels aside.
  HeadLayout head_layout(const PageShape& shape) const;
  // Bytes before a head block: its labels.
  int label_bytes() const;

  // The 16-bit rows of a sequence: tiles of the sinks, then of the window.
  int64_t row_bytes() const { return head_stride() * plan_->attention.kv_heads; }
  int64_t head_stride() const { return int64_t{sink_tiles_ + window_tiles_} * tile_bytes(); }
  int64_t window_offset() const { return int64_t{sink_tiles_} * tile_bytes(); }
  // Where a row of LayerPlan's order stands.
  int64_t tile_row(int64_t row) const {
    return row < plan_->sinks ? row : int64_t{sink_tiles_} * kTileSize + row - plan_->sinks;
  }
  RowTiles tiles(uint8_t* storage) const { return {storage, head_stride()}; }

  // For PageFamily::kFragments: enough for so many sequences at once.
  AttendShape attend_shape(int sequences) const;
  const std::vector<PageKind>& page_kinds() const { return page_kinds_; }
  // For PageFamily::kTiered.
  TieredShape tiered_shape(int sequences) const;
  TieredFormat tiered_format() const {
    return cuda::tiered_format(plan_->attention.formats[0], plan_->attention.formats[1]);
  }
  // For PageFamily::kCommVq.
  CommVqShape commvq_shape(int sequences, int64_t pages) const;

  // A part in the layout of docs/format.md, fetched from the device. Valid until this thread asks again. Waits.
  const uint8_t* part(const PageView& page, Side side, int kv_head, cudaStream_t stream) const;
  // Of a side of varying widths, the first kWidthBytes alone.
  const uint8_t* part_widths(const PageView& page, Side side, int kv_head, cudaStream_t stream) const;

  QueryShape query_shape() const {
    return {plan_->attention.kv_heads, plan_->attention.group(), plan_->attention.head_dim};
  }

  // In device memory; null where the layer has none.
  const float* key_scaling() const { return key_scaling_.as<float>(); }
  const double* frequencies() const { return frequencies_.as<double>(); }
  const uint8_t* key_tables() const { return key_tables_.as<uint8_t>(); }  // of commvq's attention
  const uint16_t* plain_tables(Side side) const { return plain_tables_[static_cast<int>(side)].as<uint16_t>(); }
  // For sides of SideKind::kCommVq.
  const CommVqSealer& commvq_sealer() const { return *commvq_sealer_; }

 private:
  int64_t tile_bytes() const { return RowTileLayout{plan_->attention.head_dim}.bytes(); }
  void choose_family();
  const uint8_t* fragment_part(const PageView& page, Side side, int kv_head, cudaStream_t stream) const;
  const uint8_t* tiered_part(const PageView& page, Side side, int kv_head, cudaStream_t stream) const;
  void upload_tables(DeviceArena& arena, cudaStream_t stream);

  const LayerPlan* plan_;
  PageFamily family_ = PageFamily::kCanonical;
  SideKind kinds_[2];
  std::vector<std::array<SideFormat, 2>> sides_;  // by level of LayerPlan::shapes
  std::vector<PageKind> page_kinds_;              // the same
  int sink_tiles_ = 0;
  int window_tiles_ = 0;
  KeyTableLayout key_layout_ = {};
  DeviceScratch key_scaling_, frequencies_, key_tables_, plain_tables_[2];
  std::optional<CommVqSealer> commvq_sealer_;
};

}  // namespace kvasir::cuda
