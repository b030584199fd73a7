// What is fixed for one layer when a cache is built.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "codecs/codec.h"
#include "kvasir/attend.h"

namespace kvasir {

struct LayerPlan {
  int index;
  int source;  // the layer whose keys and values this one attends to: mostly itself
  int sinks;
  int window;  // least tokens that stay in 16 bits
  AttentionLayer attention;
  const Codec* codecs[2];                  // by side
  std::vector<PageShape> shapes;           // what a page may be, widest first: new ones begin there, shrinks walk down
  std::vector<float> key_scaling;          // [kv_heads][head_dim], or empty
  std::vector<float> sink_logits;          // [query_heads], or empty
  std::shared_ptr<const PageTurns> turns;  // where keys are stored before RoPE
  std::vector<double> frequencies;         // and then: radians a position, by RoPE pair,
  double magnitude = 1.0;                  // and what rotated keys are multiplied by
  std::shared_ptr<const PageModel> models[2];  // by side, for codecs that have them
  const MatchKernels* match;
  bool wants_queries;  // whether a codec goes by the queries of the layer
  bool fallback;       // whether a tile verb comes from a lower backend

  bool owns_rows() const { return source == index; }
  bool can_shrink() const { return shapes.size() > 1; }
  int64_t elements_per_token() const { return int64_t{2} * attention.kv_heads * attention.head_dim; }
  // Of a block of 16-bit rows, whatever the engine.
  int64_t row_block_bytes() const {
    return kRowBlockTokens * elements_per_token() * static_cast<int64_t>(sizeof(uint16_t));
  }
  // What a page of varying parts takes beyond its shape, at most: an element 16 bits, a channel its number, and
  // padding.
  int64_t most_varying_bytes() const {
    const int64_t part =
        int64_t{attention.head_dim} * (kPageTokens * static_cast<int64_t>(sizeof(uint16_t)) + 1) + 8192;
    return shapes[0].varies() ? part * attention.kv_heads : 0;
  }
  // The window at its longest: a page gathers before it is sealed, and waits for guesses.
  int most_window_rows() const { return window + kPageTokens + kMaxMaskedTokens; }
};

}  // namespace kvasir
