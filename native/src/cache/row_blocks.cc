#include "cache/row_blocks.h"

#include <algorithm>

namespace kvasir {

int64_t RowBlocks::spare(const Change& change) const {
  const int64_t dropped = std::min(change.dropped, count());
  return static_cast<int64_t>(spare_.size()) +
         std::count_if(blocks_.begin(), blocks_.begin() + dropped, [](const RowBlock& each) { return !each.shared(); });
}

int64_t RowBlocks::missing(const Change& change) const {
  return std::max<int64_t>(0, added(change) - spare(change)) + (copies(change) ? 1 : 0);
}

int64_t RowBlocks::returned(const Change& change) const { return std::max<int64_t>(0, spare(change) - added(change)); }

int64_t RowBlocks::missing_in_steps(int64_t before, int64_t after, int64_t most, int64_t dropped) const {
  const int64_t kept_by_others = std::count_if(blocks_.begin(), blocks_.begin() + std::min(dropped, count()),
                                               [](const RowBlock& each) { return each.shared(); });
  // Blocks that are left behind take the rows that follow, but for those; or none of them needs to.
  const int64_t again = std::max<int64_t>(0, blocks_of(std::min(after, most)) - count()) + kept_by_others;
  const int64_t fresh = std::max<int64_t>(0, blocks_of(after) - count());
  return std::max<int64_t>(0, std::min(again, fresh) - static_cast<int64_t>(spare_.size())) +
         (copies({0, before, after}) ? 1 : 0);
}

int64_t RowBlocks::shared_from(int64_t first, int64_t rows) const {
  if (first >= rows) return 0;
  return std::count_if(blocks_.begin() + first / kRowBlockTokens, blocks_.begin() + blocks_of(rows),
                       [](const RowBlock& each) { return each.shared(); });
}

void RowBlocks::keep(int64_t rows) {
  const auto kept = static_cast<size_t>(std::min(blocks_of(rows), count()));
  blocks_.resize(kept);
  addresses_.resize(kept);
}

}  // namespace kvasir
