// The pattern codec: the uniform kernel on the residuals, plus a term or a weight per label.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"
#include "kernels/pattern_inl.h"

namespace kvasir::KVASIR_LEVEL {
namespace {

void begin_keys(const PageFormat& format, const SideView& side, const TileInput& queries, float* terms) {
  for (int r = 0; r < queries.count; ++r) {
    const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
    terms[entry_index(r, 0, side.count + 1)] = 0.0f;
    for (int v = 0; v < side.count; ++v) {
      F32 product = splat(0.0f);
      for (int c = 0; c < format.head_dim; c += kLanes) {
        product = fma(load(query + c), load_half(side.vectors[v] + c), product);
      }
      terms[entry_index(r, v + 1, side.count + 1)] = sum(product);
    }
  }
}

void end_values(const PageFormat& format, const SideView& side, const TileInput& weights, float* outputs) {
  for (int r = 0; r < weights.count; ++r) {
    float* output = outputs + static_cast<size_t>(r) * format.head_dim;
    for (int v = 0; v < side.count; ++v) {
      const F32 weight = splat(weights.sums[entry_index(r, v + 1, weights.entries)]);
      for (int c = 0; c < format.head_dim; c += kLanes) {
        store(output + c, fma(weight, load_half(side.vectors[v] + c), load(output + c)));
      }
    }
  }
}

}  // namespace

using Pattern = OnResiduals<uniform_kernels>;
const CodecKernels pattern_kernels = {
    Pattern::encode, Pattern::decode, Pattern::key_scores, Pattern::value_sum, begin_keys, end_values,
};

}  // namespace kvasir::KVASIR_LEVEL
