#include "engine/cuda/extension.h"

#include <utility>

#include "engine/cuda/cuda_append.h"

namespace kvasir::cuda {
namespace {

size_t description_bytes(const std::vector<CudaExtension::Layer>& layers, int count) {
  size_t bytes = 0;
  for (const auto& layer : layers)
    bytes += static_cast<size_t>(count) * CudaLayerState::description_bytes(*layer.device);
  return bytes;
}

}  // namespace

// Tokens without rows: pages are sealed, blocks taken, lengths told, and nothing is written.
class CudaExtension::LaterAppends : public Appends {
 public:
  LaterAppends(CudaExtension& extension, const DeviceLayer& layer) : extension_(extension), layer_(layer) {
    for (int i = 0; i < extension.count_; ++i) appends_.push_back(std::make_unique<CudaAppend>(layer, none_, 0, 1));
  }
  Append& operator[](int index) override { return *appends_[static_cast<size_t>(index)]; }
  void fill(const Target*) override {}
  void finish(const SequenceView* views) override { extension_.tell(layer_.plan(), views); }

 private:
  CudaExtension& extension_;
  const DeviceLayer& layer_;
  const InputRows none_ = {};
  std::vector<std::unique_ptr<CudaAppend>> appends_;
};

CudaExtension::CudaExtension(const DeviceQueue& queue, std::vector<Layer> layers, int count)
    : layers_(std::move(layers)),
      count_(count),
      descriptions_(queue, layers_.size() * static_cast<size_t>(count), description_bytes(layers_, count)),
      told_(layers_.size()) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].device->plan().can_shrink()) told_[i].reserve(static_cast<size_t>(count));
  }
}

std::unique_ptr<Appends> CudaExtension::appends(const LayerPlan& plan) {
  return std::make_unique<LaterAppends>(*this, *layers_[static_cast<size_t>(plan.index)].device);
}

void CudaExtension::tell(const LayerPlan& plan, const SequenceView* views) {
  const auto layer = static_cast<size_t>(plan.index);
  const uint64_t epoch = *layers_[layer].epoch;
  for (int i = 0; i < count_; ++i) {
    static_cast<CudaLayerState*>(views[i].state)->update(views[i], epoch, &descriptions_);
  }
  if (plan.can_shrink()) told_[layer].assign(views, views + count_);
}

void CudaExtension::finish() {
  descriptions_.write("describing sequences");
  // Pages may have shrunk to make room for layers after theirs.
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    for (const SequenceView& view : told_[layer]) {
      auto* state = static_cast<CudaLayerState*>(view.state);
      const uint64_t epoch = *layers_[layer].epoch;
      if (state->epoch() != epoch) state->update(view, epoch);
    }
  }
}

}  // namespace kvasir::cuda
