#include "kernels/pattern_inl.h"
#include "kernels/scalar/scalar.h"

namespace kvasir::scalar {
namespace {

void begin_keys(const PageFormat& format, const SideView& side, const TileInput& queries, float* terms) {
  for (int r = 0; r < queries.count; ++r) {
    const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
    terms[entry_index(r, 0, side.count + 1)] = 0.0f;
    for (int v = 0; v < side.count; ++v) {
      float sum = 0.0f;
      for (int c = 0; c < format.head_dim; ++c) sum += query[c] * half_to_float(side.vectors[v][c]);
      terms[entry_index(r, v + 1, side.count + 1)] = sum;
    }
  }
}

void end_values(const PageFormat& format, const SideView& side, const TileInput& weights, float* outputs) {
  for (int r = 0; r < weights.count; ++r) {
    float* output = outputs + static_cast<size_t>(r) * format.head_dim;
    for (int v = 0; v < side.count; ++v) {
      const float weight = weights.sums[entry_index(r, v + 1, weights.entries)];
      for (int c = 0; c < format.head_dim; ++c) output[c] += weight * half_to_float(side.vectors[v][c]);
    }
  }
}

}  // namespace

using Pattern = OnResiduals<uniform_kernels>;
const CodecKernels pattern_kernels = {
    Pattern::encode, Pattern::decode, Pattern::key_scores, Pattern::value_sum, begin_keys, end_values,
};

}  // namespace kvasir::scalar
