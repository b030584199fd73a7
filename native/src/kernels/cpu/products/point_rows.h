// Products of few rows with IQ2_XXS, whose codes are looked up: they go from the tables straight into the products,
// where other types are unpacked to memory first. For levels with dot products of bytes, each of which has
//
//   kPointRows              most rows that this pays for
//   point_rows<kRows>(...)  the product of a block of so many rows; what a panel gives, bit by bit
#pragma once

#include "kernels/matrix.h"

#if defined(__AVX512VNNI__)
#include "kernels/cpu/products/point_rows_avx512.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "kernels/cpu/products/point_rows_neon.h"
#else
namespace kvasir::KVASIR_LEVEL {
namespace {
constexpr int kPointRows = 0;
template <int kRows>
void point_rows(const MatrixBlock&) {}
}  // namespace
}  // namespace kvasir::KVASIR_LEVEL
#endif

namespace kvasir::KVASIR_LEVEL {
namespace {

// Whether it did.
inline bool few_point_rows(const MatrixBlock& block) {
  if (block.type != WeightType::kIQ2_XXS || block.rows > kPointRows) return false;
  if (block.rows == 1) point_rows<1>(block);
  if (block.rows == 2) point_rows<2>(block);
  if (block.rows == 3) point_rows<3>(block);
  return true;
}

}  // namespace
}  // namespace kvasir::KVASIR_LEVEL
