// Codec spectral, as one side of canonical pages: sealed by this machine, read by the device.
#include "codecs/basis.h"
#include "engine/cuda/families/canonical.h"
#include "kernels/cuda/spectral/rows.h"

namespace kvasir::cuda {
namespace {

class SpectralSide : public CanonicalSide {
 public:
  SpectralSide(const DeviceLayer& layer, Side side) : layer_(layer), side_(side) {
    const auto* basis = static_cast<const Basis*>(layer.format(side).model);
    if (!basis) return;
    const size_t elements = static_cast<size_t>(basis->kv_heads()) * basis->head_dim() * basis->head_dim();
    vectors_ = layer.queue().uploaded(basis->vectors(0), elements * sizeof(float), "uploading a basis");
  }

  bool sealed_here() const override { return true; }

  void read_rows(const PageRun& run, float* out) const override {
    const DeviceScratch list = layer_.queue().uploaded(run.addresses(side_), "uploading a list of pages");
    const int64_t offset = run.shape().varies() ? 0 : static_cast<int64_t>(run.shape().part_offset(side_, 0));
    const RowUnpacking unpacking = {list.as<const uint8_t*>(), run.count(), offset, out};
    check(launch_spectral_rows(layer_.format(side_), vectors_ ? vectors_.as<float>() : nullptr, unpacking,
                               layer_.queue().stream),
          "unpacking pages");
  }

 private:
  const DeviceLayer& layer_;
  const Side side_;
  DeviceScratch vectors_;
};

std::unique_ptr<CanonicalSide> side(const DeviceLayer& layer, Side side) {
  return std::make_unique<SpectralSide>(layer, side);
}

}  // namespace

extern const DeviceCodec spectral_device;
const DeviceCodec spectral_device = {nullptr, side};

}  // namespace kvasir::cuda
