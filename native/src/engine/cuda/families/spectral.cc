// Codec spectral: parts of docs/format.md, with fused attention where both sides are its own and no page shrinks. Pages
// that do are sealed and shrunk by this machine, and attention takes their rows.
#include "base/half.h"
#include "codecs/basis.h"
#include "engine/cuda/families/canonical.h"
#include "engine/cuda/families/fused.h"
#include "kernels/cuda/layout/fragments.h"
#include "kernels/cuda/spectral/attend.h"
#include "kernels/cuda/spectral/inverse_fragments.h"
#include "kernels/cuda/spectral/rows.h"
#include "kernels/cuda/spectral/seal.h"

namespace kvasir::cuda {
namespace {

// Null: rows are their own coefficients.
const Basis* basis_of(const DeviceLayer& layer, Side side) {
  return static_cast<const Basis*>(layer.format(side).model);
}

size_t elements_of(const Basis& basis) {
  return static_cast<size_t>(basis.kv_heads()) * basis.head_dim() * basis.head_dim();
}

class SpectralSide : public CanonicalSide {
 public:
  SpectralSide(const DeviceLayer& layer, Side side)
      : layer_(layer),
        side_(side),
        sealed_here_(layer.plan().can_shrink() || !seals_spectral_parts(layer.format(side).head_dim)) {
    const Basis* basis = basis_of(layer, side);
    if (!basis) return;
    const auto upload = [&](const float* numbers, size_t count) {
      return layer.queue().uploaded(numbers, count * sizeof(float), "uploading a basis");
    };
    vectors_ = upload(basis->vectors(0), elements_of(*basis));
    units_ = upload(basis->units(0), static_cast<size_t>(basis->kv_heads()) * basis->head_dim());
    inverse_ = layer.queue().uploaded(inverse_fragments(*basis), "uploading a basis");
  }

  bool sealed_here() const override { return sealed_here_; }

  void seal(const StagedPages& staged, const NewPages& pages) const override {
    std::vector<uint8_t*> parts;
    for (const NewPage& page : pages.pages) parts.push_back(page.data + page.view->part_offset(side_, 0));
    SealBasis basis = {};
    if (inverse_) basis = {inverse_.as<uint32_t>(), units_.as<float>()};
    check(seal_spectral_parts(
              {layer_.format(side_), basis, staged.staging, parts.data(), static_cast<int64_t>(parts.size())},
              layer_.queue().stream),
          "sealing pages");
  }

  void read_rows(const PageRun& run, float* out) const override {
    const DeviceScratch list = layer_.queue().uploaded(run.addresses(side_), "uploading a list of pages");
    const int64_t offset = run.shape().varies() ? 0 : static_cast<int64_t>(run.shape().part_offset(side_, 0));
    const RowUnpacking unpacking = {list.as<const uint8_t*>(), run.count(), offset, out};
    check(launch_spectral_rows(run.shape().formats[static_cast<int>(side_)], vectors_ ? vectors_.as<float>() : nullptr,
                               unpacking, layer_.queue().stream),
          "unpacking pages");
  }

 private:
  const DeviceLayer& layer_;
  const Side side_;
  const bool sealed_here_;
  DeviceScratch vectors_, units_, inverse_;
};

SpectralShape shape_of(const DeviceLayer& layer, int sequences) {
  const AttentionLayer& attention = layer.plan().attention;
  SpectralShape shape = {attention.head_dim, attention.kv_heads, attention.group(), sequences, {}, 0};
  for (const Side side : {Side::kKeys, Side::kValues}) {
    shape.layouts[static_cast<int>(side)] = spectral::layout_of(layer.format(side));
  }
  shape.value_offset = static_cast<int64_t>(layer.plan().shapes[0].part_offset(Side::kValues, 0));
  return shape;
}

class SpectralFamily : public CanonicalFamily {
 public:
  explicit SpectralFamily(const DeviceLayer& layer) : CanonicalFamily(layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const Basis* basis = basis_of(layer, side);
      if (!basis) continue;
      std::vector<uint16_t> halves(elements_of(*basis));
      for (size_t i = 0; i < halves.size(); ++i) halves[i] = float_to_half(basis->vectors(0)[i]);
      vectors_[static_cast<int>(side)] = layer.queue().uploaded(halves, "uploading a basis");
    }
  }

  bool attends(const SequenceView& view, const QueryRun& run) const override { return takes_steps(view, run); }
  void attend(const AttentionRequest& request, const QueryMemory& memory) override {
    const DeviceQueue& queue = layer_.queue();
    const int capacity = power_of_two(request.rows());
    const auto planned = launches_.at(
        queue, capacity, [&](SpectralPlan* plan) { return plan_spectral(shape_of(layer_, capacity), plan); });
    const DeviceScratch described = queue.uploaded(steps_of(request), "describing sequences");
    launch(planned, request, memory, described.as<DeviceSequence>(), queue.stream);
  }

  bool captures(const AttentionRequest& request) const override { return follows_descriptions(layer_, request); }
  void capture(const AttentionRequest& request, const QueryMemory& memory, cudaStream_t stream) override {
    const DeviceQueue& queue = layer_.queue();
    Captured made = {{queue, [&](SpectralPlan* plan) { return plan_spectral(shape_of(layer_, request.count), plan); }},
                     {queue, request}};
    check(cudaStreamSynchronize(queue.stream), "making ready for a graph");
    made.sequences.gather(stream);
    launch(made.launch.planned(), request, memory, made.sequences.get(), stream);
    captured_.push_back(std::move(made));
  }

 private:
  // What a graph keeps.
  struct Captured {
    CapturedLaunch<SpectralPlan> launch;
    GatheredSequences sequences;
  };

  void launch(const PlannedLaunch<SpectralPlan>& planned, const AttentionRequest& request, const QueryMemory& memory,
              const DeviceSequence* sequences, cudaStream_t stream) const {
    auto launch = launch_of<SpectralRequest>(request, memory, planned.workspace);
    launch.sequences = sequences;
    for (int side = 0; side < 2; ++side)
      launch.vectors[side] = vectors_[side] ? vectors_[side].as<uint16_t>() : nullptr;
    check(launch_spectral(planned.plan, launch, stream), "attention over spectral pages");
  }

  DeviceScratch vectors_[2];  // float16
  PlannedLaunches<SpectralPlan, int> launches_;
  std::vector<Captured> captured_;
};

std::unique_ptr<PageFamily> family(const DeviceLayer& layer) {
  SpectralPlan plan;
  if (layer.plan().codecs[1] != layer.plan().codecs[0] || layer.plan().can_shrink()) return nullptr;
  if (plan_spectral(shape_of(layer, 1), &plan) != cudaSuccess) return nullptr;
  return std::make_unique<SpectralFamily>(layer);
}

std::unique_ptr<CanonicalSide> side(const DeviceLayer& layer, Side side) {
  return std::make_unique<SpectralSide>(layer, side);
}

}  // namespace

extern const DeviceCodec spectral_device;
const DeviceCodec spectral_device = {family, side};

}  // namespace kvasir::cuda
