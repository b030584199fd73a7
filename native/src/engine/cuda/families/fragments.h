// Pages in the order of tensor-core fragments (kernels/cuda/layout/fragments.h): what attend/attend.h reads.
#pragma once

#include <memory>
#include <vector>

#include "engine/cuda/families/codes.h"
#include "engine/cuda/families/fused.h"
#include "kernels/cuda/attend/attend.h"

namespace kvasir::cuda {

// The layer's head blocks, by level of LayerPlan::shapes; none where a page of it has no fragments, or its keys are
// stored before RoPE.
std::vector<HeadLayout> fragment_layouts(const LayerPlan& plan);

class FragmentsFamily : public PageFamily {
 public:
  FragmentsFamily(const DeviceLayer& layer, std::vector<HeadLayout> layouts);

  void seal(const StagedPages& staged, const NewPages& pages) const override;
  bool seals_input() const override { return true; }
  const uint8_t* part(const PageView& page, Side side, int kv_head) const override;
  std::optional<RepackShape> repack(const PageShape& shape) const override;
  void write_page(const NewPage& page, const uint8_t* from) const override;
  bool shrink(const std::vector<ShrinkingPage>& pages) const override;
  bool has_half_rows(Side) const override { return true; }
  void read_half_rows(const PageRun& run, Side side, const HalfRows& out) const override;
  void read_rows(const PageRun& run, float* const (&out)[2]) const override;

  bool attends(const SequenceView& view, const QueryRun& run) const override { return takes_steps(view, run); }
  bool caps() const override { return true; }
  void attend(const AttentionRequest& request, const QueryMemory& memory) override;
  bool captures(const AttentionRequest& request) const override;
  void capture(const AttentionRequest& request, const QueryMemory& memory, cudaStream_t stream) override;

 protected:
  // By what a page is now.
  const Sides& sides(const PageShape& shape) const { return sides_[static_cast<size_t>(layer_.level_of(shape))]; }
  const HeadLayout& layout(const PageShape& shape) const {
    return layouts_[static_cast<size_t>(layer_.level_of(shape))];
  }

  // Adds to a canonical part what a head block holds beside codes.
  virtual void finish_part(const PageFormat&, const uint8_t*, uint8_t*) const {}
  // Where labels begin in a canonical part, for layouts that have them.
  virtual int64_t label_offset(const PageFormat&) const { return 0; }

  const DeviceLayer& layer_;

 private:
  // For labels, where there are many vectors (VectorRoom).
  struct Room {
    DeviceScratch memory;
    int vectors = 0;
  };
  // What a graph keeps.
  struct Captured {
    CapturedLaunch<AttendPlan> launch;
    Room room;
    DeviceScratch list;
  };

  cudaError_t plan(int sequences, AttendPlan* plan) const;
  Room make_room(const AttendPlan& plan, int vectors) const;
  // Addresses of sequences on the device, where kernel parameters have no room for them.
  DeviceScratch listed(const std::vector<const DeviceSequence*>& sequences) const;
  // settled: as AttendRequest has it.
  void launch(const PlannedLaunch<AttendPlan>& planned, const Room& room, const AttentionRequest& request,
              const std::vector<const DeviceSequence*>& sequences, const DeviceScratch& list, const QueryMemory& memory,
              bool settled, cudaStream_t stream) const;

  const std::vector<HeadLayout> layouts_;  // by level
  std::vector<Sides> sides_;               // the same
  PlannedLaunches<AttendPlan, int> launches_;
  std::vector<Captured> captured_;
};

}  // namespace kvasir::cuda
