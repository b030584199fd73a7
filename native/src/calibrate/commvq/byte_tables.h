// Key tables whose entries are bytes: the form in which attention on a GPU looks an entry up once (Precision::kFast).
//
// There each RoPE pair of a kv head has a step and each stage counts in 2^level of them. Entries of a stage that are
// such numbers of at most 127 cost one look-up; others cost two, or are off. So trained tables are rounded to them, all
// but those of the first stage, whose entries are the largest by far, and which have two bytes. What that does to a key
// is known to the stages after it, which are fitted again; only the last ones are not made good for, and these
// have the smallest entries.
//
// Entries are float16 numbers all the same, and the greatest common divisor of those of a stage and pair is what they
// count in: whoever is given the tables can tell (kernels/cuda/commvq/whole_tables.h).
#pragma once

#include <vector>

#include "codecs/commvq/key_tables.h"

namespace kvasir::commvq {

// What entries of one kv head count in.
class ByteUnits {
 public:
  // Those that lose least, for tables of these sizes. tables: [stages][entries][head_dim], planar.
  ByteUnits(const KeyShape& shape, const float* tables);

  // table: [entries][head_dim], of that stage. Entries that are too large are cut off.
  void round(int stage, float* table) const;

 private:
  const int entries_, head_dim_;
  std::vector<double> steps_;  // [pairs]
  std::vector<int> levels_;    // [stages]
};

}  // namespace kvasir::commvq
