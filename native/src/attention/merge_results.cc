// merge_attention: two results become one.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "base/row_views.h"
#include "kvasir/attend.h"

namespace kvasir {
namespace {

float number_at(const void* row, ElementType type, int64_t c) {
  if (type == ElementType::kFloat32) return static_cast<const float*>(row)[c];
  const uint16_t bits = static_cast<const uint16_t*>(row)[c];
  return type == ElementType::kFloat16 ? half_to_float(bits) : bfloat_to_float(bits);
}

void put_number(void* row, ElementType type, int64_t c, float value) {
  if (type == ElementType::kFloat32) {
    static_cast<float*>(row)[c] = value;
  } else {
    static_cast<uint16_t*>(row)[c] = type == ElementType::kFloat16 ? float_to_half(value) : float_to_bfloat(value);
  }
}

// Nothing where nothing was seen, whatever stands there: often 0 / 0.
double part_of(double share, const void* row, ElementType type, int64_t c) {
  return share > 0.0 ? share * number_at(row, type, c) : 0.0;
}

}  // namespace

void merge_attention(const MutableRowsView& outputs, float* log_sums, const RowsView& other_outputs,
                     const float* other_log_sums, int64_t tokens, int heads, int head_dim) {
  require_positive("tokens", tokens);
  require_positive("heads", heads);
  require_positive("head_dim", head_dim);
  require_pointer("log_sums", log_sums);
  require_pointer("other_log_sums", other_log_sums);
  const MutableRowsView to = checked_rows("outputs", outputs, tokens, heads, head_dim);
  const RowsView from = checked_rows("other_outputs", other_outputs, tokens, heads, head_dim);
  for (int64_t token = 0; token < tokens; ++token) {
    for (int head = 0; head < heads; ++head) {
      float& log_sum = log_sums[token * heads + head];
      const double ours = log_sum, theirs = other_log_sums[token * heads + head];
      const double highest = std::max(ours, theirs);
      if (highest == -std::numeric_limits<double>::infinity()) continue;  // neither saw anything
      const double our_share = std::exp(ours - highest), their_share = std::exp(theirs - highest);
      const double sum = our_share + their_share;
      log_sum = static_cast<float>(highest + std::log(sum));
      void* const row = row_at(to, token, head);
      const void* const other = row_at(from, token, head);
      for (int64_t c = 0; c < head_dim; ++c) {
        const double mixed = part_of(our_share, row, to.type, c) + part_of(their_share, other, from.type, c);
        put_number(row, to.type, c, static_cast<float>(mixed / sum));
      }
    }
  }
}

}  // namespace kvasir
