#include "attention/shared_rows.h"

#include <algorithm>
#include <cstring>

#include "base/scratch.h"

namespace kvasir {

const float* shared_rows(const AttentionLayer& layer, const PageView* page, const uint8_t* const* blocks, int tokens) {
  struct WholeRows;
  struct SliceRows;
  const auto d = static_cast<size_t>(layer.head_dim), row = static_cast<size_t>(layer.row_dim);
  float* rows = thread_scratch<WholeRows, float>(kPageTokens * row);
  float* slice = page ? thread_scratch<SliceRows, float>(kPageTokens * d) : nullptr;
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (int head = 0; head < layer.kv_heads; ++head) {
      float* out = rows + slice_channel(layer, side, head);
      if (page) {
        layer.codecs[static_cast<int>(side)].decode(page->format(side), page->part(side, head), slice);
        for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
          std::memcpy(out + t * row, slice + t * d, d * sizeof(float));
        }
      } else {
        for (int t = 0; t < tokens; ++t) {
          layer.rows->from_half(half_row(layer, blocks, side, head, t), d, out + static_cast<size_t>(t) * row);
        }
      }
    }
  }
  return rows;
}

}  // namespace kvasir
