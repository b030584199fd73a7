// What fused attention of all families has in common: plans that are made when first needed, workspaces, and which
// requests they take.
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
  const Plan& plan;
  void* workspace;
};

// By what a launch has room for. One at a time: workspaces belong to one launch after the other.
template <class Plan, class Capacity>
class PlannedLaunches {
 public:
  // make(&plan): plans for the current device.
  template <class Make>
  PlannedLaunch<Plan> at(const DeviceQueue& queue, const Capacity& capacity, const Make& make) {
    auto found = plans_.find(capacity);
    if (found == plans_.end()) {
      Plan made;
      check(make(&made), "planning attention");
      found = plans_.emplace(capacity, made).first;
    }
    const Plan& plan = found->second;
    return {plan, queue.workspaces.at(queue.arena, queue.stream, counter_bytes(plan), plan.workspace_bytes)};
  }

 private:
  std::map<Capacity, Plan> plans_;
};

// For a graph, with a workspace of its own: nobody knows when it will run.
template <class Plan>
class CapturedLaunch {
 public:
  template <class Make>
  CapturedLaunch(const DeviceQueue& queue, const Make& make) {
    check(make(&plan_), "planning attention");
    workspace_ = make_workspace(queue.arena, queue.stream, counter_bytes(plan_), plan_.workspace_bytes);
  }
  PlannedLaunch<Plan> planned() const { return {plan_, workspace_.template as<void>()}; }

 private:
  Plan plan_;
  DeviceScratch workspace_;
};

// What the requests of all fused kernels have.
template <class Launch>
Launch launch_of(const AttentionRequest& request, const QueryMemory& memory, void* workspace) {
  Launch launch = {};
  launch.count = static_cast<int>(request.rows());
  launch.queries = memory.queries;
  launch.outputs = memory.outputs;
  launch.type = memory.type;
  launch.softmax_scale = request.layer->softmax_scale;
  launch.soft_cap = request.layer->soft_cap;
  launch.workspace = workspace;
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
