// Random weights of every type.
#pragma once

#include <vector>

#include "kvasir/model.h"
#include "reference/weights.h"
#include "support/data.h"

namespace support {

constexpr kvasir::WeightType kWeightTypes[] = {
    kvasir::WeightType::kF32,  kvasir::WeightType::kF16,     kvasir::WeightType::kBF16,   kvasir::WeightType::kQ4_0,
    kvasir::WeightType::kQ4_1, kvasir::WeightType::kQ5_0,    kvasir::WeightType::kQ5_1,   kvasir::WeightType::kQ8_0,
    kvasir::WeightType::kQ2_K, kvasir::WeightType::kQ3_K,    kvasir::WeightType::kQ4_K,   kvasir::WeightType::kQ5_K,
    kvasir::WeightType::kQ6_K, kvasir::WeightType::kIQ2_XXS, kvasir::WeightType::kIQ4_NL, kvasir::WeightType::kIQ4_XS};

// Where a block of the type holds float16 numbers.
inline std::vector<int> halves_of(kvasir::WeightType type) {
  switch (type) {
    case kvasir::WeightType::kF32:
    case kvasir::WeightType::kBF16:
      return {};
    case kvasir::WeightType::kQ2_K:
      return {80, 82};
    case kvasir::WeightType::kQ3_K:
      return {108};
    case kvasir::WeightType::kQ4_1:
    case kvasir::WeightType::kQ5_1:
    case kvasir::WeightType::kQ4_K:
    case kvasir::WeightType::kQ5_K:
      return {0, 2};
    case kvasir::WeightType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

// Any bits, with scales that are finite: normal and subnormal, of either sign.
inline std::vector<uint8_t> random_weights(uint64_t seed, kvasir::WeightType type, int64_t count) {
  Random random(seed);
  const int number = static_cast<int>(type);
  const int bytes = reference::block_bytes(number);
  std::vector<uint8_t> weights(count / reference::block_weights(number) * bytes);
  for (uint8_t& byte : weights) byte = static_cast<uint8_t>(random.below(256));
  for (size_t at = 0; at < weights.size(); at += bytes) {
    for (const int half : halves_of(type)) {
      const int bits = random.below(2) << 15 | random.below(16 << 10);
      weights[at + half] = static_cast<uint8_t>(bits);
      weights[at + half + 1] = static_cast<uint8_t>(bits >> 8);
    }
    if (type == kvasir::WeightType::kF32) weights[at + 3] = static_cast<uint8_t>(random.below(2) << 7 | 0x3f);
    if (type == kvasir::WeightType::kBF16) weights[at + 1] = static_cast<uint8_t>(random.below(2) << 7 | 0x3f);
  }
  return weights;
}

}  // namespace support
