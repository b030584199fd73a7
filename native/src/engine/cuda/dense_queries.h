// Queries and outputs of a caller on the device as kernels take them: dense, of one type, and at multiples of 16 bytes.
// Where they are not, a copy stands in for them.
#pragma once

#include <cstdint>

#include "engine/cuda/device_queue.h"
#include "engine/cuda/families/family.h"
#include "kernels/cuda/rows/strided_rows.h"

namespace kvasir::cuda {

class DenseQueries {
 public:
  DenseQueries(const DeviceQueue& queue, const AttentionLayer& layer, int64_t rows, const DeviceQueries& given);

  // Whether there is no copy.
  bool in_place() const { return in_place_; }
  ElementType type() const { return type_; }
  // On the engine's stream, which comes after the caller's: the copy gets the queries.
  void gather();
  const void* queries() const { return in_place_ ? given_.queries.data : queries_.as<void>(); }
  void* outputs() const { return in_place_ ? given_.outputs.data : outputs_.as<void>(); }
  // Outputs of the copy go where they are wanted.
  void scatter() const;

 private:
  size_t bytes(const RowExtent& extent) const;

  const DeviceQueue& queue_;
  const DeviceQueries given_;
  const RowExtent query_extent_, output_extent_;
  bool in_place_;
  ElementType type_;
  DeviceScratch queries_, outputs_;
};

}  // namespace kvasir::cuda
