// Memory that launches of fused attention leave as they found it, for one launch of an engine after the other: whatever
// the layer and the number of sequences, plans whose arrival counters take as many bytes share it.
#pragma once

#include <map>
#include <utility>

#include "engine/cuda/device_arena.h"
#include "engine/cuda/status.h"

namespace kvasir::cuda {

// So many bytes, of which the first `counters` are clear.
inline DeviceScratch make_workspace(DeviceArena& arena, cudaStream_t stream, size_t counters, size_t bytes) {
  DeviceScratch workspace(arena, bytes);
  check(cudaMemsetAsync(workspace.as<void>(), 0, counters, stream), "clearing a workspace");
  return workspace;
}

class Workspaces {
 public:
  // The same, until the next call.
  void* at(DeviceArena& arena, cudaStream_t stream, size_t counters, size_t bytes) {
    DeviceScratch& known = by_counters_[counters];
    if (known.bytes() < bytes) {
      DeviceScratch larger = make_workspace(arena, stream, counters, bytes);
      std::swap(known, larger);
    }
    return known.as<void>();
  }

 private:
  std::map<size_t, DeviceScratch> by_counters_;
};

}  // namespace kvasir::cuda
