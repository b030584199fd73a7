// The state of an online softmax over part of a sequence, for several rows at once: what tiles update and splits merge.
//
//   max     highest score seen, -infinity before the first
//   sum     sum of exp(score - max)
//   output  sum of exp(score - max) * value
//   extra   further sums of weights, for codecs that multiply them with vectors of a side table at the end
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

#include "base/scratch.h"
#include "kernels/kernels.h"

namespace kvasir {

struct SoftmaxState {
  float* max;     // [rows]
  float* sum;     // [rows]
  float* output;  // [rows][head_dim]
  int head_dim;
  float* extra = nullptr;  // by row and entry
  int entries = 0;
  int together = kEntryRows;  // rows whose numbers for an entry stand side by side: see entry_index, or 1

  void clear(int rows) {
    for (int r = 0; r < rows; ++r) {
      max[r] = -std::numeric_limits<float>::infinity();
      sum[r] = 0.0f;
    }
    for (int i = 0; i < rows * head_dim; ++i) output[i] = 0.0f;
    for (size_t i = 0; i < entry_floats(rows, entries); ++i) extra[i] = 0.0f;  // more than enough where rows are apart
  }

  // After a step took row `row` from old_max to its present max: what the step did not see follows.
  void rescale_extra(int row, float old_max) {
    if (entries == 0 || max[row] == old_max) return;
    const float factor = std::exp(old_max - max[row]);
    for (int e = 0; e < entries; ++e) extra[index(row, e)] *= factor;
  }

  // Adds what `other` saw. A state that saw nothing changes nothing.
  void merge(const SoftmaxState& other, int rows) {
    for (int r = 0; r < rows; ++r) {
      if (other.sum[r] == 0.0f) continue;
      const float highest = std::fmax(max[r], other.max[r]);
      const float ours = std::exp(max[r] - highest);
      const float theirs = std::exp(other.max[r] - highest);
      max[r] = highest;
      sum[r] = sum[r] * ours + other.sum[r] * theirs;
      for (int i = r * head_dim; i < (r + 1) * head_dim; ++i) {
        output[i] = output[i] * ours + other.output[i] * theirs;
      }
      for (int e = 0; e < entries; ++e) {
        const size_t i = index(r, e);
        extra[i] = extra[i] * ours + other.extra[i] * theirs;
      }
    }
  }

  size_t index(int row, int entry) const {
    return together == 1 ? static_cast<size_t>(row) * entries + entry : entry_index(row, entry, entries);
  }

  // A score without a value takes part in the sum.
  void add_score(int row, float score) {
    const float highest = std::fmax(max[row], score);
    const float ours = std::exp(max[row] - highest);
    for (int i = row * head_dim; i < (row + 1) * head_dim; ++i) output[i] *= ours;
    sum[row] = sum[row] * ours + std::exp(score - highest);
    max[row] = highest;
  }

  // The logarithm of the sum of exp(score).
  float log_sum(int row) const { return max[row] + std::log(sum[row]); }

  // The attention output of a row: every query sees at least itself, so sum > 0.
  void write(int row, float* out) const {
    const float inverse = 1.0f / sum[row];
    for (int c = 0; c < head_dim; ++c) out[c] = output[row * head_dim + c] * inverse;
  }
};

// Memory for states of the same shape. Kept per thread, so that attention allocates only until it has seen its largest
// request.
class SoftmaxStates {
 public:
  // Purpose: as thread_scratch has it.
  template <class Purpose>
  void resize(size_t count, int rows, int head_dim, int entries, int together = kEntryRows) {
    together_ = together;
    rows_ = rows;
    head_dim_ = head_dim;
    entries_ = entries;
    stride_ = (static_cast<size_t>(rows) * (head_dim + 2) + entry_floats(rows, entries) + 15) / 16 * 16;
    memory_ = thread_scratch<Purpose, float>(count * stride_);
  }

  SoftmaxState at(size_t index) const {
    float* output = memory_ + index * stride_;
    float* max = output + static_cast<size_t>(rows_) * head_dim_;
    float* sum = max + rows_;
    return {max, sum, output, head_dim_, sum + rows_, entries_, together_};
  }

 private:
  float* memory_ = nullptr;
  size_t stride_ = 0;
  int rows_ = 0;
  int head_dim_ = 0;
  int entries_ = 0;
  int together_ = kEntryRows;
};

}  // namespace kvasir
