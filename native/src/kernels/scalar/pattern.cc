#include "kernels/pattern_inl.h"
#include "kernels/scalar/scalar.h"

namespace kvasir::scalar {
namespace {

void encode(const PageFormat& format, const float* rows, uint8_t* page) { uniform_kernels.encode(format, rows, page); }

void decode(const PageFormat& format, const uint8_t* page, float* rows) { uniform_kernels.decode(format, page, rows); }

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  uniform_kernels.key_scores(format, page, queries, scores);
  add_terms(format, page, queries, scores);
}

void value_sum(const PageFormat& format, const uint8_t* page, const TileInput& weights, float* outputs) {
  uniform_kernels.value_sum(format, page, weights, outputs);
  collect_weights(format, page, weights);
}

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

const CodecKernels pattern_kernels = {encode, decode, key_scores, value_sum, begin_keys, end_values};

}  // namespace kvasir::scalar
