// Labels and side tables on the device: every byte has one owner.
#include "kernels/cuda/layout/labels.h"

#include <algorithm>

#include "check.h"

namespace {

using namespace kvasir::cuda;

HOST_CASE("layout: every label has a byte of its own") {
  int owners[kBothLabelBytes] = {};
  for (int t = 0; t < kvasir::kPageTokens; ++t) {
    ++owners[key_label_byte(t)];
    ++owners[value_label_byte(t)];
  }
  CHECK(std::all_of(owners, owners + kBothLabelBytes, [](int n) { return n == 1; }), "labels");
}

HOST_CASE("layout: every element of a side table has bytes of its own") {
  for (const int d : {64, 96, 128, 256}) {
    const VectorTableLayout layout = {d};
    const int vectors = 3 * kTileSize;
    for (const bool keys : {true, false}) {
      std::vector<int> owners(static_cast<size_t>(layout.bytes(vectors)), 0);
      for (int v = 0; v < vectors; ++v) {
        for (int c = 0; c < d; ++c) {
          const int64_t byte = keys ? layout.key_byte(v, c) : layout.value_byte(v, c);
          ++owners.at(byte);
          ++owners.at(byte + 1);
        }
      }
      CHECK(std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; }), d << " " << keys);
    }
    CHECK(layout.bytes(1) == layout.bytes(kTileSize), "whole tiles");
  }
}

}  // namespace
