// An append to a sequence on the device. Rows go up once; what is sealed passes through a staging in float16, which
// encoders read, on the device or, for sides without one there, on this machine.
#pragma once

#include <mutex>
#include <vector>

#include "engine/cuda/families/family.h"
#include "engine/engine.h"

namespace kvasir::cuda {

class CudaAppend : public Append {
 public:
  // `input`: in device memory until the append ends; `memory` holds it where it is the append's own.
  CudaAppend(const DeviceLayer& layer, const InputRows& input, DeviceScratch memory)
      : Append(layer.plan(), input.tokens), layer_(layer), input_(input), memory_(std::move(memory)) {}

  void open(const SequenceView& before, int64_t pages) override;
  void rows(Side side, int kv_head, int64_t first, int64_t count, float* out, int stride) const override;
  bool lay_out(const SeenQueries& queries, PartHeads& heads) override;
  bool grow(Side side, SealInput& input, SideTable& table, LayerState* state) override;
  void seal(const std::vector<NewPage>& pages, const PartHeads& heads, const SideTable (&tables)[2],
            LayerState* state) override;
  void fill(uint8_t* const* sink_blocks, uint8_t* const* window_blocks) override;

 private:
  // Input rows that become sinks.
  int64_t new_sinks() const;
  size_t side_halves() const;

  const DeviceLayer& layer_;
  const InputRows input_;
  const DeviceScratch memory_;

  SequenceView before_ = {};
  StagedPages staged_ = {};
  DeviceScratch staging_memory_;
  mutable std::once_flag downloaded_;
  mutable std::vector<uint16_t> halves_;  // the staging, once somebody here looks at it
};

}  // namespace kvasir::cuda
