// An append to a sequence on the device. Rows go up once; what is sealed passes through a staging in float16, which
// encoders read, on the device or, for codecs without one there, on this machine.
#pragma once

#include <mutex>
#include <vector>

#include "engine/cuda/device_layer.h"
#include "engine/cuda/layer_state.h"
#include "engine/engine.h"
#include "kernels/cuda/tiered_encode.h"

namespace kvasir::cuda {

class CudaAppend : public Append {
 public:
  // `input`: in device memory until the append ends; `memory` holds it where it is the append's own.
  CudaAppend(const DeviceLayer& layer, DeviceArena& arena, cudaStream_t stream, const InputRows& input,
             DeviceScratch memory)
      : Append(layer.plan(), input.tokens),
        layer_(layer),
        arena_(arena),
        stream_(stream),
        input_(input),
        memory_(std::move(memory)) {}

  void open(const SequenceView& before, int64_t pages) override;
  void rows(Side side, int kv_head, int64_t first, int64_t count, float* out, int stride) const override;
  // Waits for the tiers of pages, 4 bytes a kv head, because memory for pages is taken by this machine: once for each
  // append that seals any.
  bool lay_out(const SeenQueries& queries, PartHeads& heads) override;
  bool grow(Side side, SealInput& input, SideTable& table, LayerState* state) override;
  void seal(const std::vector<NewPage>& pages, const PartHeads& heads, const SideTable (&tables)[2],
            LayerState* state) override;
  void fill(uint8_t* storage) override;

 private:
  // Input rows that become sinks.
  int64_t new_sinks() const;
  size_t side_halves() const;
  // Patterns where pages are not fragments: the only pages that the device has no encoder for.
  bool sealed_here(Side side) const { return layer_.kind(side) == SideKind::kPattern; }
  void encode_on_device(const std::vector<NewPage>& pages, bool keys, bool values);
  void encode_patterns(const std::vector<NewPage>& pages, const SideTable (&tables)[2], const CudaLayerState& state);
  TieredSealRequest tiered_request() const;
  TierChoices choices() const;
  void encode_tiers(const std::vector<NewPage>& pages);
  void encode_tiered_parts(const std::vector<NewPage>& pages);
  void encode_commvq(Side side, const std::vector<NewPage>& pages);
  void encode_here(const std::vector<NewPage>& pages, const PartHeads& heads, const SideTable (&tables)[2]);
  const DeviceLayer& layer_;
  DeviceArena& arena_;
  const cudaStream_t stream_;
  const InputRows input_;
  const DeviceScratch memory_;

  SequenceView before_ = {};
  int64_t pages_ = 0;
  Staging staging_ = {};
  DeviceScratch staging_memory_;
  DeviceScratch choices_;  // tiers, from lay_out on
  mutable std::once_flag downloaded_;
  mutable std::vector<uint16_t> halves_;  // the staging, once somebody here looks at it
};

}  // namespace kvasir::cuda
