#include <cmath>

#include "base/half.h"
#include "kernels/scalar/scalar.h"

namespace kvasir::scalar {
namespace {

float element(const void* elements, ElementType type, size_t i) {
  switch (type) {
    case ElementType::kFloat32:
      return static_cast<const float*>(elements)[i];
    case ElementType::kFloat16:
      return half_to_float(static_cast<const uint16_t*>(elements)[i]);
    case ElementType::kBFloat16:
      return bfloat_to_float(static_cast<const uint16_t*>(elements)[i]);
  }
  return 0.0f;
}

bool check(const void* elements, ElementType type, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!(std::fabs(element(elements, type, i)) <= kMaxMagnitude)) return false;  // also refuses NaN
  }
  return true;
}

void to_half(const void* elements, ElementType type, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = float_to_half(element(elements, type, i));
}

void from_half(const uint16_t* halves, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = half_to_float(halves[i]);
}

void key_scores(const uint16_t* rows, int tokens, int head_dim, const TileInput& queries, float* scores) {
  for (int r = 0; r < queries.count; ++r) {
    const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
    for (int t = 0; t < tokens; ++t) {
      const uint16_t* key = rows + static_cast<size_t>(t) * head_dim;
      float sum = 0.0f;
      for (int c = 0; c < head_dim; ++c) sum += query[c] * half_to_float(key[c]);
      scores[r * kPageTokens + t] = sum;
    }
  }
}

void turned_scores(const uint16_t* rows, int tokens, int head_dim, const TileInput& queries, float* scores) {
  const int half = head_dim / 2;
  for (int t = 0; t < tokens; ++t) {
    const uint16_t* row = rows + static_cast<size_t>(t) * head_dim;
    const float* cosine = queries.turns + static_cast<size_t>(t) * head_dim;
    float key[kMaxHeadDim];
    for (int j = 0; j < half; ++j) {
      const float re = half_to_float(row[queries.neighbours ? 2 * j : j]);
      const float im = half_to_float(row[queries.neighbours ? 2 * j + 1 : half + j]);
      key[j] = re * cosine[j] - im * cosine[half + j];
      key[half + j] = re * cosine[half + j] + im * cosine[j];
    }
    for (int r = 0; r < queries.count; ++r) {
      const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
      float sum = 0.0f;
      for (int c = 0; c < head_dim; ++c) sum += query[c] * key[c];
      scores[r * kPageTokens + t] = sum;
    }
  }
}

void value_sum(const uint16_t* rows, int tokens, int head_dim, const TileInput& weights, float* outputs) {
  for (int r = 0; r < weights.count; ++r) {
    const float* weight = weights.rows + static_cast<size_t>(r) * weights.stride;
    float* output = outputs + static_cast<size_t>(r) * head_dim;
    for (int t = 0; t < tokens; ++t) {
      const uint16_t* value = rows + static_cast<size_t>(t) * head_dim;
      for (int c = 0; c < head_dim; ++c) output[c] += weight[t] * half_to_float(value[c]);
    }
  }
}

void float_scores(const float* rows, int tokens, int stride, int dim, const TileInput& queries, float* scores) {
  for (int r = 0; r < queries.count; ++r) {
    const float* query = queries.rows + static_cast<size_t>(r) * queries.stride;
    for (int t = 0; t < tokens; ++t) {
      const float* key = rows + static_cast<size_t>(t) * stride;
      float sum = 0.0f;
      for (int c = 0; c < dim; ++c) sum += query[c] * key[c];
      scores[r * kPageTokens + t] = sum;
    }
  }
}

void float_sum(const float* rows, int tokens, int stride, int dim, const TileInput& weights, float* outputs) {
  for (int r = 0; r < weights.count; ++r) {
    const float* weight = weights.rows + static_cast<size_t>(r) * weights.stride;
    float* output = outputs + static_cast<size_t>(r) * dim;
    for (int t = 0; t < tokens; ++t) {
      const float* value = rows + static_cast<size_t>(t) * stride;
      for (int c = 0; c < dim; ++c) output[c] += weight[t] * value[c];
    }
  }
}

void softmax(float* scores, int begin, int end, float* max, float* sum, float* output, int head_dim) {
  float highest = *max;
  for (int t = begin; t < end; ++t) highest = std::fmax(highest, scores[t]);
  const float rescale = std::exp(*max - highest);  // 0 at the first step: exp(-infinity)
  float total = 0.0f;
  for (int t = 0; t < kPageTokens; ++t) {
    scores[t] = t < begin || t >= end ? 0.0f : std::exp(scores[t] - highest);
    total += scores[t];
  }
  *max = highest;
  *sum = *sum * rescale + total;
  for (int c = 0; c < head_dim; ++c) output[c] *= rescale;
}

void soft_cap(float* scores, int begin, int end, float cap) {
  for (int t = begin; t < end; ++t) scores[t] = cap * std::tanh(scores[t] / cap);
}

}  // namespace

const RowKernels row_kernels = {check,        to_half,   from_half,     key_scores, value_sum,
                                float_scores, float_sum, turned_scores, softmax,    soft_cap};

}  // namespace kvasir::scalar
