// Views of rows: strides that keep rows apart are taken as they are, all others refused.
#include "base/row_views.h"

#include <set>

#include "support/doctest.h"

namespace {

using kvasir::checked_rows;
using kvasir::ElementType;
using kvasir::ErrorCode;
using kvasir::RowsView;

bool refused(const RowsView& view, int64_t tokens, int64_t heads, int64_t width) {
  try {
    checked_rows("queries", view, tokens, heads, width);
    return false;
  } catch (const kvasir::Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return true;
  }
}

const float kMemory[1] = {};

RowsView view(int64_t token_stride, int64_t head_stride) {
  return {kMemory, ElementType::kFloat32, token_stride, head_stride};
}

// Whether no two rows share an element, by looking at each of them.
bool apart(const RowsView& view, int64_t tokens, int64_t heads, int64_t width) {
  std::set<int64_t> seen;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t c = 0; c < width; ++c) {
        if (!seen.insert(t * view.token_stride + h * view.head_stride + c).second) return false;
      }
    }
  }
  return true;
}

}  // namespace

TEST_CASE("row views: no strides mean dense") {
  const RowsView dense = checked_rows("queries", view(0, 0), 5, 3, 32);
  CHECK(dense.head_stride == 32);
  CHECK(dense.token_stride == 96);
  CHECK(kvasir::is_dense(dense, 5, 3, 32));
  CHECK(kvasir::row_at(dense, 2, 1) == static_cast<const void*>(kMemory + 2 * 96 + 32));
}

TEST_CASE("row views: heads first, and rows with gaps") {
  const RowsView heads_first = checked_rows("queries", view(32, 160), 5, 3, 32);
  CHECK(!kvasir::is_dense(heads_first, 5, 3, 32));
  CHECK(kvasir::row_at(heads_first, 2, 1) == static_cast<const void*>(kMemory + 2 * 32 + 160));
  CHECK(!kvasir::is_dense(checked_rows("queries", view(100, 32), 5, 3, 32), 5, 3, 32));
  // What is one does not matter.
  CHECK(kvasir::is_dense(checked_rows("queries", view(1, 32), 1, 3, 32), 1, 3, 32));
  CHECK(kvasir::is_dense(checked_rows("queries", view(32, 7), 5, 1, 32), 5, 1, 32));
}

TEST_CASE("row views: what is accepted keeps rows apart, and all that is nested is accepted") {
  constexpr int64_t kWidth = 4;
  for (int64_t tokens : {1, 2, 3}) {
    for (int64_t heads : {1, 2, 3}) {
      for (int64_t t = 0; t <= 16; ++t) {
        for (int64_t h = 0; h <= 16; ++h) {
          if (t == 0 && h == 0) continue;
          const bool separate = apart(view(t, h), tokens, heads, kWidth);
          const bool nested =
              tokens == 1 || heads == 1 || t >= (heads - 1) * h + kWidth || h >= (tokens - 1) * t + kWidth;
          CAPTURE(tokens);
          CAPTURE(heads);
          CAPTURE(t);
          CAPTURE(h);
          CHECK(refused(view(t, h), tokens, heads, kWidth) == !(separate && nested));
        }
      }
    }
  }
}

TEST_CASE("row views: what is no view at all") {
  const auto no_view = [](const RowsView& bad, int64_t tokens = 5) { return refused(bad, tokens, 3, 32); };
  CHECK(no_view({nullptr, ElementType::kFloat32, 0, 0}));
  CHECK(no_view({kMemory, static_cast<ElementType>(3), 0, 0}));
  CHECK(no_view({reinterpret_cast<const char*>(kMemory) + 2, ElementType::kFloat32, 0, 0}));
  CHECK(!no_view({reinterpret_cast<const char*>(kMemory) + 2, ElementType::kFloat16, 0, 0}));
  CHECK(no_view(view(-96, 32)));
  CHECK(no_view(view(96, -32)));
  CHECK(no_view(view(int64_t{1} << 62, 32)));
  CHECK(no_view(view(int64_t{1} << 60, 32), 9));
}
