#include "engine/cuda/families/fused.h"

namespace kvasir::cuda {
namespace {

// Query tokens that are taken one by one; with more of them, unpacking pages to memory once is less work
// (docs/performance.md, "Prompts on CUDA").
constexpr int kMostSteps = 64;
constexpr int64_t kMostSequences = 4096;  // of a fused kernel

}  // namespace

int power_of_two(int64_t count) {
  int64_t power = 1;
  while (power < count) power *= 2;
  return static_cast<int>(power);
}

bool takes_steps(const AttentionRequest& request) {
  if (request.tokens == 1) return true;
  if (request.tokens > kMostSteps || int64_t{request.count} * request.tokens > kMostSequences) return false;
  for (int i = 0; i < request.count; ++i) {
    const SequenceView& view = request.sequences[i];
    if (view.page_count > 0 && request.tokens > view.window) return false;
  }
  return true;
}

std::vector<DeviceSequence> steps_of(const AttentionRequest& request) {
  std::vector<DeviceSequence> steps;
  for (int i = 0; i < request.count; ++i) {
    const SequenceView& view = request.sequences[i];
    for (int newer = request.tokens - 1; newer >= 0; --newer) {
      steps.push_back(state_of(view).seen_before(view, newer));
    }
  }
  return steps;
}

}  // namespace kvasir::cuda
