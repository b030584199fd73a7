// The types that weights come in, by their blocks. How a block is widened is a matter of kernels: weights_inl.h.
#pragma once

#include <cstdint>

#include "kvasir/model.h"

namespace kvasir {

struct WeightLayout {
  WeightType type;
  const char* name;
  int elements;  // of a block
  int bytes;     // of a block
};

constexpr WeightLayout kWeightLayouts[] = {
    {WeightType::kF32, "F32", 1, 4},
    {WeightType::kF16, "F16", 1, 2},
    {WeightType::kBF16, "BF16", 1, 2},
    {WeightType::kQ4_0, "Q4_0", 32, 2 + 16},
    {WeightType::kQ4_1, "Q4_1", 32, 2 * 2 + 16},
    {WeightType::kQ5_0, "Q5_0", 32, 2 + 4 + 16},
    {WeightType::kQ5_1, "Q5_1", 32, 2 * 2 + 4 + 16},
    {WeightType::kQ8_0, "Q8_0", 32, 2 + 32},
    {WeightType::kQ2_K, "Q2_K", 256, 16 + 64 + 2 * 2},
    {WeightType::kQ3_K, "Q3_K", 256, 32 + 64 + 12 + 2},
    {WeightType::kQ4_K, "Q4_K", 256, 2 * 2 + 12 + 128},
    {WeightType::kQ5_K, "Q5_K", 256, 2 * 2 + 12 + 32 + 128},
    {WeightType::kQ6_K, "Q6_K", 256, 128 + 64 + 16 + 2},
    {WeightType::kIQ2_XXS, "IQ2_XXS", 256, 2 + 64},
    {WeightType::kIQ4_NL, "IQ4_NL", 32, 2 + 16},
    {WeightType::kIQ4_XS, "IQ4_XS", 256, 2 + 2 + 4 + 128},
};

// Null where the number names no type.
constexpr const WeightLayout* find_layout(WeightType type) {
  for (const WeightLayout& layout : kWeightLayouts) {
    if (layout.type == type) return &layout;
  }
  return nullptr;
}

// Whether weights are numbers each of their own, not codes of a block.
constexpr bool is_float(WeightType type) {
  return type == WeightType::kF32 || type == WeightType::kF16 || type == WeightType::kBF16;
}

}  // namespace kvasir
