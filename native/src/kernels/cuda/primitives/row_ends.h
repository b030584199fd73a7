// What attention does at the end of a row, beside writing its output.
#pragma once

#include "base/host_device.h"

namespace kvasir::cuda {

// Rows are those of [tokens][query heads].
struct RowEnds {
  const float* sink_logits = nullptr;  // [query heads]: scores without a value, in every softmax; null: none
  float* log_sums = nullptr;           // by row: the natural logarithm of the sum of exp(score); null: not wanted

  KVASIR_HOST_DEVICE constexpr bool any() const { return sink_logits != nullptr || log_sums != nullptr; }
};

}  // namespace kvasir::cuda
