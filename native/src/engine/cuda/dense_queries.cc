#include "engine/cuda/dense_queries.h"

#include "base/row_views.h"

namespace kvasir::cuda {
namespace {

template <class View>
bool fits(const View& view, const RowExtent& extent) {
  return is_dense(view, extent.tokens, extent.heads, extent.width) && reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

}  // namespace

DenseQueries::DenseQueries(const DeviceQueue& queue, const AttentionLayer& layer, int64_t rows,
                           const DeviceQueries& given)
    : queue_(queue),
      given_(given),
      query_extent_{rows, layer.query_heads, layer.query_dim()},
      output_extent_{rows, layer.query_heads, layer.output_dim()} {
  const bool alike = given.queries.type == given.outputs.type;
  in_place_ = alike && fits(given.queries, query_extent_) && fits(given.outputs, output_extent_);
  type_ = alike ? given.queries.type : ElementType::kFloat32;
}

size_t DenseQueries::bytes(const RowExtent& extent) const {
  return static_cast<size_t>(extent.tokens) * static_cast<size_t>(extent.heads) * static_cast<size_t>(extent.width) *
         element_bytes(type_);
}

void DenseQueries::gather() {
  if (in_place_) return;
  queries_ = queue_.take(bytes(query_extent_));
  check(launch_gather_rows(query_extent_, given_.queries, queries_.as<void>(), type_, queue_.stream),
        "gathering queries");
  outputs_ = queue_.take(bytes(output_extent_));
}

void DenseQueries::scatter() const {
  if (in_place_) return;
  check(launch_scatter_rows(output_extent_, outputs_.as<void>(), type_, given_.outputs, queue_.stream),
        "placing outputs");
}

}  // namespace kvasir::cuda
