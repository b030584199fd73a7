// Attention of one layer on the device: which kernel a request takes, and the memory that its launches share.
//
//   few query tokens, pages that a fused kernel reads    attend/attend.h, commvq/attend.h, tiered/attend.h
//   all else                                             plain_path.h
//
// Fused kernels take a chunk of a sequence's tokens as sequences of their own, each of which sees what its token sees:
// pages are read that often, but never decoded to memory.
//
// One call at a time: workspaces belong to one launch after the other.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/cuda/device_layer.h"
#include "engine/cuda/layer_state.h"
#include "engine/engine.h"

namespace kvasir::cuda {

// Where queries come from and outputs go to, on the device.
struct QueryMemory {
  const void* queries;
  void* outputs;
  ElementType type;

  size_t number_bytes() const { return type == ElementType::kFloat32 ? sizeof(float) : sizeof(uint16_t); }
};

class LayerAttention {
 public:
  LayerAttention(const DeviceLayer& layer, DeviceArena& arena, cudaStream_t stream)
      : layer_(layer), arena_(arena), stream_(stream) {}

  // On the engine's stream.
  Engine::Tiles run(const AttentionRequest& request, const QueryMemory& memory, uint64_t epoch);
  // Into a graph, on the caller's stream: with memory of its own, because nobody knows when the graph will run.
  Engine::Tiles capture(const AttentionRequest& request, const QueryMemory& memory, uint64_t epoch,
                        cudaStream_t stream);

 private:
  template <class Plan>
  struct Launch {
    Plan plan;
    DeviceScratch workspace;
  };
  // For patterns, where there are many (VectorRoom).
  struct Room {
    DeviceScratch memory;
    int vectors = 0;
  };
  struct Captured {
    Launch<AttendPlan> fused;
    Room room;
    DeviceScratch queries;  // scaled, where the layer does that
  };

  int64_t bring_up_to_date(const AttentionRequest& request, uint64_t epoch);
  void scale(const AttentionRequest& request, const QueryMemory& memory, void* to, cudaStream_t stream);
  template <class Plan, class Make>
  Launch<Plan> make_launch(const Make& make);

  DeviceScratch describe(const std::vector<DeviceSequence>& sequences);
  bool takes_steps(const AttentionRequest& request) const;
  Launch<AttendPlan> make_fused(int sequences);
  Room make_room(const AttendPlan& plan, int vectors);
  void attend_fused(const Launch<AttendPlan>& launch, const Room& room, const AttentionRequest& request,
                    const std::vector<const DeviceSequence*>& sequences, const QueryMemory& memory,
                    cudaStream_t stream);
  void attend_fused(const AttentionRequest& request, const QueryMemory& memory);
  void attend_commvq(const AttentionRequest& request, const QueryMemory& memory);
  void attend_tiered(const AttentionRequest& request, const QueryMemory& memory);
  void attend_plain(const AttentionRequest& request, const QueryMemory& memory);

  const DeviceLayer& layer_;
  DeviceArena& arena_;
  const cudaStream_t stream_;
  std::map<int, Launch<AttendPlan>> fused_;                   // by the most sequences
  std::map<int, Launch<TieredPlan>> tiered_;                  // the same
  std::map<std::pair<int, int>, Launch<CommVqPlan>> commvq_;  // and by the most pages
  std::vector<Captured> captured_;                            // graphs keep theirs
};

}  // namespace kvasir::cuda
