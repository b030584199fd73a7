// Appends to sequences on the device. Rows go up once. What is sealed passes through a staging in float16, which
// encoders read, on the device or, for sides without one there, on this machine; where the family can, only rows of
// pages that begin in the window do, and others become pages in one pass.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "engine/cuda/families/family.h"
#include "engine/cuda/layer_state.h"
#include "engine/cuda/pieces.h"
#include "engine/engine.h"

namespace kvasir::cuda {

class CudaAppend : public Append {
 public:
  // Its tokens are those of `input` from `begin` on, in device memory until the append ends. Where that has none, rows
  // come later.
  CudaAppend(const DeviceLayer& layer, const InputRows& input, int64_t begin, int64_t tokens)
      : Append(layer.plan(), tokens), layer_(layer), input_(input), begin_(begin) {}

  int64_t present() const override { return input_.tokens > 0 ? tokens_ : 0; }
  void open(const SequenceView& before, int64_t pages) override;
  void rows(Side side, int kv_head, int64_t first, int64_t count, float* out, int stride) const override;
  bool lay_out(const uint8_t* sums, PartHeads& heads) override;
  bool grow(Side side, SealInput& input, SideTable& table, LayerState* state) override;
  void seal(const std::vector<NewPage>& pages, const PartHeads& heads, const SideTable (&tables)[2],
            LayerState* state) override;

  // Rows that are in no page, to where they belong: in launches of its own, or added to a list.
  void fill(const Appends::Target& target) const;
  void list(const Appends::Target& target, std::vector<RowMove>& moves) const;

 private:
  // Input rows that become sinks.
  int64_t new_sinks() const;
  // Input rows from `first` on are in no page, and neither sinks: they become rows `row`, ... of the window.
  struct WindowRows {
    int64_t first;
    int64_t row;
  };
  WindowRows window_rows() const;
  size_t side_halves() const;

  const DeviceLayer& layer_;
  const InputRows& input_;
  const int64_t begin_;

  SequenceView before_ = {};
  StagedPages staged_ = {};
  DeviceScratch staging_memory_;
  mutable std::once_flag downloaded_;
  mutable std::vector<uint16_t> halves_;  // the staging, once somebody here looks at it
};

class CudaAppends : public Appends {
 public:
  // `memory` holds the input where it is the append's own; `epoch` counts the shrinks of the layer.
  CudaAppends(const DeviceLayer& layer, const std::atomic<uint64_t>& epoch, const InputRows& input,
              DeviceScratch memory, const std::vector<int64_t>& counts);

  Append& operator[](int index) override { return *appends_[static_cast<size_t>(index)]; }
  void fill(const Target* targets) override;
  void finish(const SequenceView* views) override;

 private:
  // What many sequences need, and one does not.
  struct Together {
    Together(const DeviceLayer& layer, size_t tokens, size_t sequences)
        : moves_there(layer.queue().take(tokens * sizeof(RowMove))),
          descriptions(layer.queue(), sequences, sequences * CudaLayerState::description_bytes(layer)) {
      moves.reserve(tokens);
    }
    std::vector<RowMove> moves;
    DeviceScratch moves_there;
    Pieces descriptions;
  };

  const DeviceLayer& layer_;
  const std::atomic<uint64_t>& epoch_;
  const InputRows input_;
  const DeviceScratch memory_;
  std::vector<std::unique_ptr<CudaAppend>> appends_;
  std::unique_ptr<Together> together_;
};

}  // namespace kvasir::cuda
