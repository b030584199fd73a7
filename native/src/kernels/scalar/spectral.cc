#include "base/multiply_add.h"
#include "kernels/scalar/scalar.h"
#include "kernels/spectral_inl.h"

namespace kvasir::scalar {
namespace {

using spectral::Layout;

// z = (row / norm) times the inverse of the basis. Sums wrap around, which only those of rows that are not finite do.
void transform(const Basis& basis, int head, const float* row, float inverse_norm, float* z) {
  const int d = basis.head_dim();
  const int16_t* pairs = basis.inverse(head);
  const float scale = spectral::row_scale(d) * inverse_norm;
  uint32_t sums[kMaxHeadDim] = {};
  for (int i = 0; i < d; i += 2, pairs += 2 * d) {
    const int first = spectral::row_number(row[i], scale), second = spectral::row_number(row[i + 1], scale);
    for (int c = 0; c < d; ++c) sums[c] += static_cast<uint32_t>(first * pairs[2 * c] + second * pairs[2 * c + 1]);
  }
  for (int c = 0; c < d; ++c) z[c] = static_cast<float>(static_cast<int32_t>(sums[c])) * basis.units(head)[c];
}

void encode(const PageFormat& format, const float* rows, uint8_t* part) {
  const Layout layout = spectral::layout_of(format);
  const int d = format.head_dim;
  const Basis* basis = spectral::basis_of(format);
  alignas(64) float z[kPageTokens * kMaxHeadDim];
  for (int head = 0; head < format.heads; ++head) {
    uint8_t* to = part + static_cast<size_t>(head) * layout.bytes;
    for (int t = 0; t < kPageTokens; ++t) {
      const float* row = rows + (static_cast<size_t>(t) * format.heads + head) * d;
      const uint8_t norm = spectral::norm_code(spectral::mean_square(row, d));
      const float inverse = spectral::inverse_power(norm - spectral::kNormBias);
      to[layout.norms + t] = norm;
      float* out = z + static_cast<size_t>(t) * d;
      if (basis) {
        transform(*basis, head, row, inverse, out);
      } else {
        for (int c = 0; c < d; ++c) out[c] = row[c] * inverse;
      }
    }
    spectral::write_head(format, z, to);
  }
}

void decode(const PageFormat& format, const uint8_t* part, float* rows) {
  const Layout layout = spectral::layout_of(format);
  const int d = format.head_dim;
  const Basis* basis = spectral::basis_of(format);
  alignas(64) float z[kPageTokens * kMaxHeadDim];
  for (int head = 0; head < format.heads; ++head) {
    const uint8_t* from = spectral::head_of(format, part, head);
    spectral::read_head(format, from, z);
    for (int t = 0; t < kPageTokens; ++t) {
      float* row = rows + (static_cast<size_t>(t) * format.heads + head) * d;
      const float* coefficients = z + static_cast<size_t>(t) * d;
      const float norm = spectral::norm_of(from[layout.norms + t]);
      for (int c = 0; c < d; ++c) row[c] = basis ? 0.0f : coefficients[c];
      for (int i = 0; basis && i < d; ++i) {
        const float* vector = basis->vectors(head) + static_cast<size_t>(i) * d;
        for (int c = 0; c < d; ++c) row[c] = multiply_add(coefficients[i], vector[c], row[c]);
      }
      for (int c = 0; c < d; ++c) row[c] *= norm;
    }
  }
}

void key_scores(const PageFormat& format, const uint8_t* part, const TileInput& queries, float* scores) {
  const uint8_t* head = spectral::head_of(format, part, queries.head);
  const Layout layout = spectral::layout_of(format);
  const int d = format.head_dim;
  alignas(64) float z[kPageTokens * kMaxHeadDim];
  spectral::read_head(format, head, z);
  for (int r = 0; r < queries.count; ++r) {
    const float* terms = queries.terms + static_cast<size_t>(r) * d;
    for (int t = 0; t < kPageTokens; ++t) {
      float sum = 0.0f;
      for (int c = 0; c < d; ++c) sum += terms[c] * z[t * d + c];
      scores[r * kPageTokens + t] = sum * spectral::norm_of(head[layout.norms + t]);
    }
  }
}

void value_sum(const PageFormat& format, const uint8_t* part, const TileInput& weights, float*) {
  const uint8_t* head = spectral::head_of(format, part, weights.head);
  const Layout layout = spectral::layout_of(format);
  const int d = format.head_dim;
  alignas(64) float z[kPageTokens * kMaxHeadDim];
  spectral::read_head(format, head, z);
  for (int r = 0; r < weights.count; ++r) {
    float* sums = weights.sums + static_cast<size_t>(r) * weights.entries;
    for (int t = 0; t < kPageTokens; ++t) {
      const float weight =
          weights.rows[static_cast<size_t>(r) * weights.stride + t] * spectral::norm_of(head[layout.norms + t]);
      for (int c = 0; c < d; ++c) sums[c] += weight * z[t * d + c];
    }
  }
}

}  // namespace

const CodecKernels spectral_kernels = {
    encode, decode, key_scores, value_sum, spectral::begin_keys, spectral::end_values, spectral::shrink,
};

}  // namespace kvasir::scalar
