// Bases for the codec "spectral".
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kvasir/kvasir.h"
#include "support/data.h"

namespace support {

// [heads][d][d]: vectors that are neither orthogonal nor of one length.
inline std::vector<float> basis_vectors(uint64_t seed, int heads, int d) {
  std::vector<float> vectors = float_rows(seed, heads * d, d, 0.3 / std::sqrt(d));
  for (int vector = 0; vector < heads * d; ++vector) {
    const int c = vector % d;
    vectors[static_cast<size_t>(vector) * d + c] += 1.0f + 0.5f * static_cast<float>(c % 3);
  }
  return vectors;
}

// Gives both sides of a layer a basis each.
inline void add_bases(kvasir::CacheConfig& config, int layer, int heads, int d) {
  for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
    const std::vector<float> vectors = basis_vectors(20 + static_cast<uint64_t>(side), heads, d);
    config.set_basis(layer, side, vectors.data(), static_cast<int64_t>(vectors.size()));
  }
}

}  // namespace support
