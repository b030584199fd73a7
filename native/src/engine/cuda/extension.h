// One more token in all layers of some sequences, whose rows a graph writes: what the device is told of all of them
// goes up in one copy.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "engine/cuda/layer_state.h"
#include "engine/cuda/pieces.h"
#include "engine/engine.h"

namespace kvasir::cuda {

class CudaExtension : public Extension {
 public:
  // A layer, and how often its pages have shrunk.
  struct Layer {
    const DeviceLayer* device;
    const std::atomic<uint64_t>* epoch;
  };
  // layers: by index.
  CudaExtension(const DeviceQueue& queue, std::vector<Layer> layers, int count);

  std::unique_ptr<Appends> appends(const LayerPlan& plan) override;
  void tell(const LayerPlan& plan, const SequenceView* views) override;
  void finish() override;

 private:
  class LaterAppends;

  const std::vector<Layer> layers_;
  const int count_;
  Pieces descriptions_;
  std::vector<std::vector<SequenceView>> told_;  // by layer, of those whose pages shrink: as its sequences are now
};

}  // namespace kvasir::cuda
