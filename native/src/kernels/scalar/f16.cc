#include "base/half.h"
#include "kernels/scalar/scalar.h"

namespace kvasir::scalar {
namespace {

const uint16_t* rows_of(const uint8_t* page) { return reinterpret_cast<const uint16_t*>(page); }

void encode(const PageFormat& format, const float* rows, uint8_t* page) {
  row_kernels.to_half(rows, ElementType::kFloat32, static_cast<size_t>(kPageTokens) * format.head_dim,
                      reinterpret_cast<uint16_t*>(page));
}

void decode(const PageFormat& format, const uint8_t* page, float* rows) {
  row_kernels.from_half(rows_of(page), static_cast<size_t>(kPageTokens) * format.head_dim, rows);
}

void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
  const auto verb = queries.turns ? row_kernels.turned_scores : row_kernels.key_scores;
  verb(rows_of(page), kPageTokens, format.head_dim, queries, scores);
}

void value_sum(const PageFormat& format, const uint8_t* page, const TileInput& weights, float* outputs) {
  row_kernels.value_sum(rows_of(page), kPageTokens, format.head_dim, weights, outputs);
}

}  // namespace

const CodecKernels f16_kernels = {encode, decode, key_scores, value_sum};

}  // namespace kvasir::scalar
