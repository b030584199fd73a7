// What the device holds of one layer of one sequence beside its bytes: the description that attention reads, with the
// addresses of its 16-bit rows behind it, the list of its pages, and the vectors of its side tables.
//
// Descriptions stay where they are as long as the sequence lives, so that a captured graph follows it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cuda/device_layer.h"
#include "engine/cuda/pieces.h"
#include "engine/engine.h"
#include "kernels/cuda/attend/types.h"
#include "kernels/cuda/layout/labels.h"

namespace kvasir::cuda {

class CudaLayerState : public LayerState {
 public:
  explicit CudaLayerState(const DeviceLayer& layer);

  // Room for so many pages, and for the vectors of these tables. What the device sees stays as it is.
  void reserve(int64_t pages, const SideTable (&tables)[2]);
  // Brings the device up to date with `view`, for which there is room: takes no memory. `epoch` counts the shrinks of
  // the layer. The description goes with the `pieces` of others where there are any: description_bytes at most.
  void update(const SequenceView& view, uint64_t epoch, Pieces* pieces = nullptr);
  static size_t description_bytes(const DeviceLayer& layer) {
    return sizeof(DeviceSequence) + static_cast<size_t>(layer.row_blocks()) * sizeof(uint64_t);
  }

  uint64_t epoch() const { return epoch_; }
  const DeviceSequence* description() const { return description_.as<DeviceSequence>(); }
  const DeviceSequence& latest() const { return latest_; }
  // Of `view`, which this is up to date with, the tokens from position `oldest` on without the newest `newer`. Those
  // must be rows of the window, or there is no page.
  DeviceSequence seen_before(const SequenceView& view, int64_t newer, int64_t oldest) const;
  // Memory for so many vectors of a side table, of which the device gets those that `table` has.
  VectorMemory room_for(Side side, const SideTable& table, int64_t vectors);
  // Vectors first .. first + count - 1 as this machine keeps them: of the first chunk [kv_heads][count][head_dim], of
  // those after it [count][kv_heads][head_dim]. Waits.
  void read_vectors(Side side, int first, int count, uint16_t* out) const;
  // The table as launches see it, with pages counted from `first_page`.
  VectorTable describe(Side side, const SideTable& table, int64_t first_page) const;
  const VectorTable& table(Side side) const { return tables_[static_cast<int>(side)].table; }

 private:
  struct Table {
    DeviceScratch memory;
    int64_t capacity = 0;                  // vectors
    std::vector<const uint16_t*> vectors;  // of kv head 0: those that the device has
    VectorTable table = {};
  };

  void update_pages(const SequenceView& view);
  void update_description(const SequenceView& view, Pieces* pieces);
  // Other memory in its place; the old stays until the device sees the new.
  void replace(DeviceScratch& memory, size_t bytes);
  void reserve_vectors(Side side, const SideTable& table, int64_t vectors);
  void upload_vectors(Side side, const SideTable& table);
  // Vectors of the table, from the first on, that the device has.
  int known_of(Side side, const SideTable& table) const;
  const uint64_t* blocks_there() const { return reinterpret_cast<const uint64_t*>(description() + 1); }
  int64_t byte_of(Side side, int vector, int channel) const;  // in a table, of kv head 0

  const DeviceLayer& layer_;
  uint64_t epoch_ = 0;
  int64_t first_page_ = -1, page_count_ = -1;  // as last listed
  int64_t capacity_ = 0;                       // pages
  DeviceScratch description_, references_;
  const uint64_t* listed_ = nullptr;    // where pages were last listed: references_, or what it was before
  std::vector<DeviceScratch> retired_;  // what the description may still name
  DeviceSequence latest_ = {};
  std::vector<uint64_t> blocks_;            // addresses of 16-bit rows as last listed: of the sinks, then of the window
  std::vector<uint8_t> description_bytes_;  // a description and its blocks, to be uploaded
  std::vector<uint64_t> reference_list_;    // pages, the same
  std::vector<uint8_t> tiles_;              // vectors, the same
  Table tables_[2];
};

}  // namespace kvasir::cuda
