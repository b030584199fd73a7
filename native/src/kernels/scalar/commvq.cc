#include <cstring>

#include "base/half.h"
#include "codecs/commvq/model.h"
#include "kernels/commvq_inl.h"
#include "kernels/scalar/scalar.h"

namespace kvasir::scalar {
namespace {

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  const commvq::KeyModel& model = commvq::keys_of(format);
  const int d = format.head_dim, half = d / 2;
  const auto* norms = reinterpret_cast<const uint16_t*>(page);
  KeyCodes codes;
  unpack_head(model.page, page, queries.head, codes);
  for (int t = 0; t < kPageTokens; ++t) {
    float plain[kMaxHeadDim] = {}, times_i[kMaxHeadDim] = {}, key[kMaxHeadDim];
    for (int chunk = 0; chunk < d / commvq::kChunk; ++chunk) {
      const uint16_t* table = model.chunk_tables(queries.head, chunk);
      for (int s = 0; s < model.page.stages; ++s, table += model.entries * commvq::kChunk) {
        for (int i = 0; i < commvq::kChunk; ++i) {
          plain[chunk * commvq::kChunk + i] += half_to_float(table[codes.a[s][t] + i]);
          times_i[chunk * commvq::kChunk + i] += half_to_float(table[codes.b[s][t] + i]);
        }
      }
    }
    for (int j = 0; j < half; ++j) {
      key[j] = plain[j] - times_i[half + j];
      key[half + j] = plain[half + j] + times_i[j];
    }
    const float* cosine = queries.turns + static_cast<size_t>(t) * d;
    float turned[kMaxHeadDim];
    for (int j = 0; j < half; ++j) {
      turned[j] = key[j] * cosine[j] - key[half + j] * cosine[half + j];
      turned[half + j] = key[j] * cosine[half + j] + key[half + j] * cosine[j];
    }
    for (int r = 0; r < queries.count; ++r) {
      const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
      float sum = 0.0f;
      for (int c = 0; c < d; ++c) sum += query[c] * turned[c];
      scores[r * kPageTokens + t] = sum * half_to_float(norms[t]);
    }
  }
}

void value_sum(const PageFormat& format, const uint8_t* page, const TileInput& weights, float*) {
  const commvq::ValuePage layout = commvq::values_of(format).page;
  const CodePlane plane = layout.plane();
  const auto* gains = reinterpret_cast<const uint16_t*>(page);
  for (int r = 0; r < weights.count; ++r) {
    float* sums = weights.sums + static_cast<size_t>(r) * weights.entries;
    for (int t = 0; t < kPageTokens; ++t) {
      const float weight = weights.rows[static_cast<size_t>(r) * weights.stride + t] * half_to_float(gains[t]);
      for (int n = 0; n < layout.codes; ++n) {
        if (plane.get(page + commvq::kScaleBytes, t, n) != 0) sums[n] += weight;
      }
    }
  }
}

void end_values(const PageFormat& format, const SideView&, const TileInput& weights, float* outputs) {
  const commvq::ValueModel& model = commvq::values_of(format);
  for (int r = 0; r < weights.count; ++r) {
    const float* sums = weights.sums + static_cast<size_t>(r) * weights.entries;
    float* output = outputs + static_cast<size_t>(r) * format.head_dim;
    for (int n = 0; n < model.page.codes; ++n) {
      const uint16_t* row = model.row(weights.head, n);
      for (int c = 0; c < format.head_dim; ++c) output[c] += sums[n] * half_to_float(row[c]);
    }
  }
}

}  // namespace

const CodecKernels commvq_kernels = {
    commvq::encode, commvq::decode, key_scores, value_sum, nullptr, end_values,
};

}  // namespace kvasir::scalar
