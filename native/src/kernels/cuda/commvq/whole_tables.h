// Tables that were rounded to bytes when they were trained (calibrate/commvq/byte_tables.h).
//
// The entries of a stage and RoPE pair are whole numbers of their greatest common divisor, which tables do not say but
// have. Where the divisors of all stages and pairs are multiples of step[pair] * 2^level[stage], and no entry is more
// than 127 of these, one plane of bytes holds a stage without loss; two hold one whose entries are up to
// 127 * 2^kHighLevel steps. Tables of other origin have no such steps: rounded to float16, their entries count in
// far smaller units than their size.
#pragma once

#include <optional>
#include <vector>

#include "codecs/commvq/model.h"

namespace kvasir::cuda {

constexpr int kHighLevel = commvq::kMostLevel;  // of the first of two planes of bytes

// Of one kv head.
struct WholeSteps {
  std::vector<double> steps;  // [pairs]
  std::vector<int> levels;    // [stages], 0 .. kHighLevel; 0 where a stage is `wide`

  // wide: [stages], those with two planes. Nothing where there are no such steps.
  static std::optional<WholeSteps> find(const commvq::KeyModel& model, int kv_head, const std::vector<bool>& wide);
};

}  // namespace kvasir::cuda
