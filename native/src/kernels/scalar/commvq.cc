#include <cstring>

#include "base/half.h"
#include "codecs/commvq/model.h"
#include "kernels/commvq_inl.h"
#include "kernels/scalar/scalar.h"

namespace kvasir::scalar {
namespace {

// Number `index` of a row of numbers of `bits` bits.
int number_at(const uint8_t* packed, int bits, int index) {
  int number = 0;
  for (int i = 0; i < bits; ++i) number |= (packed[(index * bits + i) / 8] >> (index * bits + i) % 8 & 1) << i;
  return number;
}

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  const commvq::KeyModel& model = commvq::keys_of(format);
  const int d = format.head_dim, half = d / 2;
  const auto* norms = reinterpret_cast<const uint16_t*>(page);
  const uint8_t* codes = page + model.page.head_offset(queries.head);
  const int bits = model.page.index_bits;
  for (int t = 0; t < kPageTokens; ++t) {
    float plain[kMaxHeadDim] = {}, times_i[kMaxHeadDim] = {}, key[kMaxHeadDim];
    for (int s = 0; s < model.page.stages; ++s) {
      const int code = number_at(codes + s * model.page.stage_bytes(), 2 * bits, t);
      const int a = code & (model.entries - 1), b = code >> bits;
      for (int c = 0; c < d; ++c) {
        const uint16_t* table = model.chunk_tables(queries.head, c / commvq::kChunk) +
                                static_cast<size_t>(s) * model.entries * commvq::kChunk + c % commvq::kChunk;
        plain[c] += half_to_float(table[a * commvq::kChunk]);
        times_i[c] += half_to_float(table[b * commvq::kChunk]);
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
