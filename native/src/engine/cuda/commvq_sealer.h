// Seals the sides of a layer that are CommVQ's, on the device: what its searches read, made once, and their launches.
#pragma once

#include <vector>

#include "engine/cuda/device_arena.h"
#include "engine/layer_plan.h"
#include "kernels/cuda/commvq/seal.h"

namespace kvasir::cuda {

class CommVqSealer {
 public:
  // Makes ready for the sides of which `tables` has the model's tables, in device memory that stays.
  CommVqSealer(const LayerPlan& plan, const uint16_t* const (&tables)[2], DeviceArena& arena, cudaStream_t stream);

  // parts: of the staging's first pages, in device memory.
  void seal(Side side, const Staging& staging, const std::vector<uint8_t*>& parts, DeviceArena& arena,
            cudaStream_t stream) const;

 private:
  void prepare(const commvq::KeyModel& model, const uint16_t* tables, DeviceArena& arena, cudaStream_t stream);
  void prepare(const commvq::ValueModel& model, const uint16_t* tables, DeviceArena& arena, cudaStream_t stream);
  void upload_network(const commvq::ValueNetwork& network, DeviceArena& arena, cudaStream_t stream);

  KeySearch keys_ = {};
  ValueSearch values_ = {};
  DeviceScratch cross_, gram_, thresholds_, network_;
};

}  // namespace kvasir::cuda
