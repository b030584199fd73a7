#include "cache/row_blocks.h"

#include <algorithm>

namespace kvasir {

int64_t RowBlocks::spare(const Change& change) const {
  const int64_t dropped = std::min(change.dropped, count());
  return std::count_if(blocks_.begin(), blocks_.begin() + dropped, [](const RowBlock& each) { return !each.shared(); });
}

int64_t RowBlocks::missing(const Change& change) const {
  return std::max<int64_t>(0, added(change) - spare(change)) + (copies(change) ? 1 : 0);
}

int64_t RowBlocks::returned(const Change& change) const { return std::max<int64_t>(0, spare(change) - added(change)); }

void RowBlocks::keep(int64_t rows) {
  const auto kept = static_cast<size_t>(std::min(blocks_of(rows), count()));
  blocks_.resize(kept);
  addresses_.resize(kept);
}

}  // namespace kvasir
