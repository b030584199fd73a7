// Float16 rows on their way into pages.
#pragma once

#include <cstdint>

namespace kvasir::cuda {

struct RowShape {
  int kv_heads;
  int head_dim;
};

// Rows of the tokens that are about to be sealed: each side [kv_heads][rows][head_dim], 16-byte aligned.
struct Staging {
  uint16_t* sides[2];
  int64_t rows;  // of one head
};

}  // namespace kvasir::cuda
