#include "engine/cuda/families/commvq_side.h"

#include <algorithm>

#include "kernels/cuda/commvq/rows.h"
#include "kernels/cuda/commvq/tables.h"

namespace kvasir::cuda {
namespace {

template <class Model>
const Model& model_of(const DeviceLayer& layer, Side side) {
  return static_cast<const Model&>(*layer.format(side).model);
}

std::vector<uint8_t*> parts_of(const NewPages& pages, Side side) {
  std::vector<uint8_t*> parts;
  for (const NewPage& page : pages.pages) parts.push_back(page.data + page.view->part_offset(side, 0));
  return parts;
}

// The list stays until the launch that `launch` makes.
template <class Launch>
void unpack(const DeviceLayer& layer, const PageRun& run, Side side, float* out, const Launch& launch) {
  const DeviceScratch list = layer.queue().uploaded(run.addresses(side), "uploading a list of pages");
  const int64_t offset = run.shape().varies() ? 0 : static_cast<int64_t>(run.shape().part_offset(side, 0));
  check(launch(RowUnpacking{list.as<const uint8_t*>(), run.count(), offset, out}), "unpacking pages");
}

}  // namespace

CommVqKeys::CommVqKeys(const DeviceLayer& layer)
    : layer_(layer),
      model_(model_of<commvq::KeyModel>(layer, Side::kKeys)),
      tables_(layer.queue().uploaded(model_.tables, plain_table_bytes(model_), "uploading tables")),
      search_{model_.page, model_.head_dim, model_.pairs, model_.refinements, tables_.as<uint16_t>(), nullptr} {
  cross_ = layer.queue().take(key_cross_bytes(search_));
  check(key_cross(search_, cross_.as<float>(), layer.queue().stream), "preparing CommVQ's keys");
  search_.cross = cross_.as<float>();
}

void CommVqKeys::seal(const StagedPages& staged, const NewPages& pages) const {
  const std::vector<uint8_t*> parts = parts_of(pages, Side::kKeys);
  const auto count = static_cast<int64_t>(parts.size());
  const DeviceScratch scratch = layer_.queue().take(std::max<size_t>(key_scratch_bytes(search_, count), 1));
  check(seal_commvq_keys(search_, {staged.staging, parts.data(), count, scratch.as<void>()}, layer_.queue().stream),
        "sealing pages");
}

void CommVqKeys::read_rows(const PageRun& run, float* out) const {
  unpack(layer_, run, Side::kKeys, out, [&](const RowUnpacking& rows) {
    return launch_commvq_key_rows(model_.page, model_.head_dim, model_.pairs, tables_.as<uint16_t>(), rows,
                                  layer_.queue().stream);
  });
}

CommVqValues::CommVqValues(const DeviceLayer& layer)
    : layer_(layer),
      model_(model_of<commvq::ValueModel>(layer, Side::kValues)),
      tables_(layer.queue().uploaded(model_.tables, plain_table_bytes(model_), "uploading tables")),
      thresholds_(layer.queue().uploaded(model_.thresholds, static_cast<size_t>(model_.page.codes) * sizeof(float),
                                         "uploading thresholds")) {
  search_.page = model_.page;
  search_.kv_heads = model_.kv_heads;
  search_.head_dim = model_.head_dim;
  search_.flips = model_.flips;
  search_.tables = tables();
  search_.thresholds = thresholds_.as<float>();
  if (model_.network) upload_network(*model_.network);
  gram_ = layer.queue().take(value_gram_bytes(search_));
  check(value_gram(search_, gram_.as<float>(), layer.queue().stream), "preparing CommVQ's values");
  search_.gram = gram_.as<float>();
}

void CommVqValues::upload_network(const commvq::ValueNetwork& network) {
  const DeviceQueue& queue = layer_.queue();
  const auto width = static_cast<size_t>(search_.width()), logits = static_cast<size_t>(2 * search_.page.codes);
  const auto hidden = static_cast<size_t>(network.hidden), padded = (hidden + 15) / 16 * 16;
  network_ = queue.take((3 * width + padded * width + padded + logits * padded + logits) * sizeof(float));
  check(cudaMemsetAsync(network_.as<void>(), 0, network_.bytes(), queue.stream), "uploading a network");
  float* to = network_.as<float>();
  // Rows of `columns` elements, `stride` apart where they go; `room` is what all of them take.
  const auto copy = [&](const float* from, size_t rows, size_t columns, size_t stride, size_t room) {
    check(cudaMemcpy2DAsync(to, stride * sizeof(float), from, columns * sizeof(float), columns * sizeof(float), rows,
                            cudaMemcpyHostToDevice, queue.stream),
          "uploading a network");
    to += room;
    return to - room;
  };
  const auto copy_row = [&](const float* from, size_t columns, size_t room) {
    return copy(from, 1, columns, columns, room);
  };
  search_.has_network = true;
  search_.network.hidden = static_cast<int>(padded);
  search_.network.scale = copy_row(network.scale, width, width);
  search_.network.norm_weight = copy_row(network.norm_weight, width, width);
  search_.network.norm_bias = copy_row(network.norm_bias, width, width);
  search_.network.first_weight = copy(network.first_weight, hidden, width, width, padded * width);
  search_.network.first_bias = copy_row(network.first_bias, hidden, padded);
  search_.network.second_weight = copy(network.second_weight, logits, hidden, padded, logits * padded);
  search_.network.second_bias = copy_row(network.second_bias, logits, logits);
}

void CommVqValues::seal(const StagedPages& staged, const NewPages& pages) const {
  const std::vector<uint8_t*> parts = parts_of(pages, Side::kValues);
  const auto count = static_cast<int64_t>(parts.size());
  const DeviceScratch scratch = layer_.queue().take(std::max<size_t>(value_scratch_bytes(search_, count), 1));
  check(seal_commvq_values(search_, {staged.staging, parts.data(), count, scratch.as<void>()}, layer_.queue().stream),
        "sealing pages");
}

void CommVqValues::read_rows(const PageRun& run, float* out) const {
  unpack(layer_, run, Side::kValues, out, [&](const RowUnpacking& rows) {
    return launch_commvq_value_rows(model_.page, model_.kv_heads, model_.head_dim, tables(), rows,
                                    layer_.queue().stream);
  });
}

}  // namespace kvasir::cuda
