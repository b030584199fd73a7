// What fused attention of all families has in common: plans that are made when first needed, with their workspaces, and
// which requests they take.
//
// A chunk of a sequence's query tokens is taken as sequences of their own, each of which sees what its token sees:
// pages are read that often, but never unpacked to memory.
#pragma once

#include <map>
#include <vector>

#include "engine/cuda/families/family.h"
#include "engine/cuda/layer_state.h"

namespace kvasir::cuda {

template <class Plan>
struct PlannedLaunch {
  Plan plan;
  DeviceScratch workspace;
};

// make(&plan): plans for the current device.
template <class Plan, class Make>
PlannedLaunch<Plan> make_launch(const DeviceQueue& queue, const Make& make) {
  PlannedLaunch<Plan> launch;
  check(make(&launch.plan), "planning attention");
  launch.workspace = queue.take(launch.plan.workspace_bytes);
  check(clear_workspace(launch.plan, launch.workspace.template as<void>(), queue.stream), "clearing a workspace");
  return launch;
}

// By what a launch has room for. One at a time: workspaces belong to one launch after the other.
template <class Plan, class Capacity>
class PlannedLaunches {
 public:
  template <class Make>
  const PlannedLaunch<Plan>& at(const DeviceQueue& queue, const Capacity& capacity, const Make& make) {
    auto found = launches_.find(capacity);
    if (found == launches_.end()) found = launches_.emplace(capacity, make_launch<Plan>(queue, make)).first;
    return found->second;
  }

 private:
  std::map<Capacity, PlannedLaunch<Plan>> launches_;
};

// What the requests of all fused kernels have.
template <class Launch>
Launch launch_of(const AttentionRequest& request, const QueryMemory& memory, const DeviceScratch& workspace) {
  Launch launch = {};
  launch.count = static_cast<int>(request.rows());
  launch.queries = memory.queries;
  launch.outputs = memory.outputs;
  launch.type = memory.type;
  launch.softmax_scale = request.layer->softmax_scale;
  launch.soft_cap = request.layer->soft_cap;
  launch.workspace = workspace.as<void>();
  launch.ends = memory.ends;
  return launch;
}

// Capacities are powers of two, so that there are few.
int power_of_two(int64_t count);

// Whether fused kernels can take the query tokens one by one, and should.
bool takes_steps(const SequenceView& view, const QueryRun& run);
// Whether each sequence has one, and sees what its description says.
bool follows_descriptions(const DeviceLayer& layer, const AttentionRequest& request);
// Where the device has what it knows of each sequence, for requests that follow it.
std::vector<const DeviceSequence*> descriptions(const AttentionRequest& request);
// The same side by side, as they are when a graph runs that keeps this: for kernels that take an array of them.
class GatheredSequences {
 public:
  GatheredSequences(const DeviceQueue& queue, const AttentionRequest& request);
  // Launches on the stream that is captured, once the queue's has come to its end.
  void gather(cudaStream_t stream) const;
  const DeviceSequence* get() const { return gathered_.as<DeviceSequence>(); }

 private:
  int count_;
  DeviceScratch list_, gathered_;
};
// What each query token sees, sequence by sequence; of those with masks, what came before all of them.
std::vector<DeviceSequence> steps_of(const AttentionRequest& request);

inline const CudaLayerState& state_of(const SequenceView& view) {
  return static_cast<const CudaLayerState&>(*view.state);
}

}  // namespace kvasir::cuda
