#include "engine/cuda/commvq_sealer.h"

#include <algorithm>

#include "engine/cuda/status.h"

namespace kvasir::cuda {

CommVqSealer::CommVqSealer(const LayerPlan& plan, const uint16_t* const (&tables)[2], DeviceArena& arena,
                           cudaStream_t stream) {
  const PageFormat* formats = plan.attention.formats;
  if (tables[0]) prepare(static_cast<const commvq::KeyModel&>(*formats[0].model), tables[0], arena, stream);
  if (tables[1]) prepare(static_cast<const commvq::ValueModel&>(*formats[1].model), tables[1], arena, stream);
}

void CommVqSealer::prepare(const commvq::KeyModel& model, const uint16_t* tables, DeviceArena& arena,
                           cudaStream_t stream) {
  keys_ = {model.page, model.head_dim, model.pairs, model.refinements, tables, nullptr};
  cross_ = DeviceScratch(arena, key_cross_bytes(keys_));
  check(key_cross(keys_, cross_.as<float>(), stream), "preparing CommVQ's keys");
  keys_.cross = cross_.as<float>();
}

void CommVqSealer::prepare(const commvq::ValueModel& model, const uint16_t* tables, DeviceArena& arena,
                           cudaStream_t stream) {
  values_.page = model.page;
  values_.kv_heads = model.kv_heads;
  values_.head_dim = model.head_dim;
  values_.flips = model.flips;
  values_.tables = tables;
  thresholds_ = DeviceScratch(arena, static_cast<size_t>(model.page.codes) * sizeof(float));
  check(cudaMemcpyAsync(thresholds_.as<void>(), model.thresholds, thresholds_.bytes(), cudaMemcpyHostToDevice, stream),
        "uploading thresholds");
  values_.thresholds = thresholds_.as<float>();
  if (model.network) upload_network(*model.network, arena, stream);
  gram_ = DeviceScratch(arena, value_gram_bytes(values_));
  check(value_gram(values_, gram_.as<float>(), stream), "preparing CommVQ's values");
  values_.gram = gram_.as<float>();
}

void CommVqSealer::upload_network(const commvq::ValueNetwork& network, DeviceArena& arena, cudaStream_t stream) {
  const auto width = static_cast<size_t>(values_.width()), logits = static_cast<size_t>(2 * values_.page.codes);
  const auto hidden = static_cast<size_t>(network.hidden), padded = (hidden + 15) / 16 * 16;
  network_ = DeviceScratch(arena, (3 * width + padded * width + padded + logits * padded + logits) * sizeof(float));
  check(cudaMemsetAsync(network_.as<void>(), 0, network_.bytes(), stream), "uploading a network");
  float* to = network_.as<float>();
  // Rows of `columns` elements, `stride` apart where they go; `room` is what all of them take.
  const auto copy = [&](const float* from, size_t rows, size_t columns, size_t stride, size_t room) {
    check(cudaMemcpy2DAsync(to, stride * sizeof(float), from, columns * sizeof(float), columns * sizeof(float), rows,
                            cudaMemcpyHostToDevice, stream),
          "uploading a network");
    to += room;
    return to - room;
  };
  const auto copy_row = [&](const float* from, size_t columns, size_t room) {
    return copy(from, 1, columns, columns, room);
  };
  values_.has_network = true;
  values_.network.hidden = static_cast<int>(padded);
  values_.network.scale = copy_row(network.scale, width, width);
  values_.network.norm_weight = copy_row(network.norm_weight, width, width);
  values_.network.norm_bias = copy_row(network.norm_bias, width, width);
  values_.network.first_weight = copy(network.first_weight, hidden, width, width, padded * width);
  values_.network.first_bias = copy_row(network.first_bias, hidden, padded);
  values_.network.second_weight = copy(network.second_weight, logits, hidden, padded, logits * padded);
  values_.network.second_bias = copy_row(network.second_bias, logits, logits);
}

void CommVqSealer::seal(Side side, const Staging& staging, const std::vector<uint8_t*>& parts, DeviceArena& arena,
                        cudaStream_t stream) const {
  const auto count = static_cast<int64_t>(parts.size());
  const bool keys = side == Side::kKeys;
  const size_t bytes = keys ? key_scratch_bytes(keys_, count) : value_scratch_bytes(values_, count);
  const DeviceScratch scratch(arena, std::max<size_t>(bytes, 1));
  const CommVqSealRequest request = {staging, parts.data(), count, scratch.as<void>()};
  check(keys ? seal_commvq_keys(keys_, request, stream) : seal_commvq_values(values_, request, stream),
        "sealing pages");
}

}  // namespace kvasir::cuda
