// The verbs of a codec whose pages are, but for something of its own, those of another: each passes the call on.
#pragma once

#include "kernels/kernels.h"

namespace kvasir {

template <const CodecKernels& kBase>
struct Forward {
  static void encode(const PageFormat& format, const float* rows, uint8_t* page) { kBase.encode(format, rows, page); }
  static void decode(const PageFormat& format, const uint8_t* page, float* rows) { kBase.decode(format, page, rows); }
  static void key_scores(const PageFormat& format, const uint8_t* page, const TileInput& queries, float* scores) {
    kBase.key_scores(format, page, queries, scores);
  }
  static void value_sum(const PageFormat& format, const uint8_t* page, const TileInput& weights, float* outputs) {
    kBase.value_sum(format, page, weights, outputs);
  }
};

}  // namespace kvasir
