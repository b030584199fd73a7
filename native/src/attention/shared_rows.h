// Rows that keys and values share, put together from the slices that they are stored in.
#pragma once

#include <cstdint>

#include "attention/attention.h"

namespace kvasir {

// Where the row of a token begins in a slice: [side][kv_head] slices of head_dim channels, one behind the other.
inline int slice_channel(const AttentionLayer& layer, Side side, int kv_head) {
  return ((side == Side::kValues ? layer.kv_heads : 0) + kv_head) * layer.head_dim;
}

// The first `tokens` rows of a page, or where it is null of blocks of 16-bit rows: [tokens][row_dim], in memory of this
// thread that stays until it asks again.
const float* shared_rows(const AttentionLayer& layer, const PageView* page, const uint8_t* const* blocks, int tokens);

}  // namespace kvasir
