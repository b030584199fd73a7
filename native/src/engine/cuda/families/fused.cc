#include "engine/cuda/families/fused.h"

#include "kernels/cuda/attend/gather_sequences.h"

namespace kvasir::cuda {
namespace {

// Query tokens that are taken one by one; with more of them, unpacking pages to memory once is less work
// (docs/kernels.md, "Prompts on CUDA").
constexpr int kMostSteps = 64;

}  // namespace

int power_of_two(int64_t count) {
  int64_t power = 1;
  while (power < count) power *= 2;
  return static_cast<int>(power);
}

bool takes_steps(const SequenceView& view, const QueryRun& run) {
  return run.tokens == 1 || (run.tokens <= kMostSteps && (view.page_count == 0 || run.tokens <= view.window));
}

bool follows_descriptions(const DeviceLayer& layer, const AttentionRequest& request) {
  for (int i = 0; i < request.count; ++i) {
    if (request.runs[i].masks) return false;
  }
  return request.rows() == request.count && request.count <= kMostFusedRows &&
         request.layer->sliding_window == layer.plan().attention.sliding_window;
}

std::vector<const DeviceSequence*> descriptions(const AttentionRequest& request) {
  std::vector<const DeviceSequence*> sequences;
  for (int i = 0; i < request.count; ++i) sequences.push_back(state_of(request.sequences[i]).description());
  return sequences;
}

GatheredSequences::GatheredSequences(const DeviceQueue& queue, const AttentionRequest& request)
    : count_(request.count),
      list_(queue.uploaded(descriptions(request), "uploading a list of sequences")),
      gathered_(queue.take(sizeof(DeviceSequence) * static_cast<size_t>(request.count))) {}

void GatheredSequences::gather(cudaStream_t stream) const {
  check(launch_gather_sequences(list_.as<const DeviceSequence*>(), count_, gathered_.as<DeviceSequence>(), stream),
        "gathering sequences");
}

std::vector<DeviceSequence> steps_of(const AttentionRequest& request) {
  std::vector<DeviceSequence> steps;
  for (int i = 0; i < request.count; ++i) {
    const SequenceView& view = request.sequences[i];
    const QueryRun& run = request.runs[i];
    const int64_t window = request.layer->sliding_window;
    for (int t = 0; t < run.tokens; ++t) {
      const int64_t oldest = window > 0 ? run.position(view.length, t) + 1 - window : 0;
      steps.push_back(state_of(view).seen_before(view, run.masks ? run.tokens : run.tokens - 1 - t, oldest));
    }
  }
  return steps;
}

}  // namespace kvasir::cuda
