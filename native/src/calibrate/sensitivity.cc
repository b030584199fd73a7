// Sensitivities of one side of one layer (PM-KVQ, equation 5), in double sums of fixed order.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/checks.h"
#include "base/thread_pool.h"
#include "calibrate/quantiser.h"
#include "kvasir/calibrate.h"

namespace kvasir {
namespace {

using calibrate::Group;
using calibrate::group_of;
using calibrate::kMaxGroup;
using calibrate::Quantiser;
using calibrate::require_width;
using calibrate::stored_value;

// One side of one layer, and how it is cut into groups.
struct Job {
  const float* rows;
  const float* gradients;
  const float* scaling;  // or null
  int64_t tokens;
  int kv_heads, head_dim;
  bool by_channel;
  int group;
  const int* widths;
  int width_count;

  size_t index(int64_t token, int head, int channel) const {
    return (static_cast<size_t>(token) * kv_heads + head) * head_dim + channel;
  }
  float factor(int head, int channel) const {
    return scaling == nullptr ? 1.0f : scaling[static_cast<size_t>(head) * head_dim + channel];
  }
};

// In the order of the elements, before threads meet them in another.
void require_elements(const Job& job) {
  for (int64_t i = 0; i < job.tokens * job.kv_heads * job.head_dim; ++i) {
    const float stored =
        job.rows[i] / job.factor(static_cast<int>(i / job.head_dim % job.kv_heads), static_cast<int>(i % job.head_dim));
    // Negated, so that NaN is refused too.
    if (!(std::fabs(stored) <= kMaxMagnitude)) {
      throw calibrate::not_finite(job.scaling == nullptr ? "rows" : "rows over their factors", "", job.kv_heads,
                                  job.head_dim, i, stored);
    }
    if (!std::isfinite(job.gradients[i])) {
      throw calibrate::not_finite("gradients", "", job.kv_heads, job.head_dim, i, job.gradients[i]);
    }
  }
}

// Adds one group's terms: `count` elements from (token, channel) along the job's axis.
void add_group(const Job& job, int head, int64_t token, int channel, int count, double* sums) {
  float stored[kMaxGroup] = {};
  double value[kMaxGroup], weight[kMaxGroup], factor[kMaxGroup];
  for (int i = 0; i < count; ++i) {
    const int64_t t = job.by_channel ? token + i : token;
    const int c = job.by_channel ? channel : channel + i;
    const size_t at = job.index(t, head, c);
    const float scale = job.factor(head, c);
    stored[i] = stored_value(job.rows[at] / scale);
    value[i] = job.rows[at];
    factor[i] = scale;
    weight[i] = std::fabs(static_cast<double>(job.gradients[at]));
  }
  const Group group(stored, count);
  for (int w = 0; w < job.width_count; ++w) {
    const Quantiser quantise(group, job.widths[w], Grid::kEnds);
    double sum = 0.0;
    for (int i = 0; i < count; ++i) {
      sum += weight[i] * std::fabs(value[i] - factor[i] * static_cast<double>(quantise(stored[i])));
    }
    sums[w] += sum;
  }
}

// Adds the groups of one head in tokens first .. end - 1.
void add_page(const Job& job, int head, int64_t first, int64_t end, double* sums) {
  if (job.by_channel) {
    for (int64_t token = first; token < end; token += job.group) {
      const int count = static_cast<int>(end - token < job.group ? end - token : job.group);
      for (int channel = 0; channel < job.head_dim; ++channel) add_group(job, head, token, channel, count, sums);
    }
    return;
  }
  for (int64_t token = first; token < end; ++token) {
    for (int channel = 0; channel < job.head_dim; channel += job.group) {
      const int count = job.head_dim - channel < job.group ? job.head_dim - channel : job.group;
      add_group(job, head, token, channel, count, sums);
    }
  }
}

}  // namespace

void sensitivities(const float* rows, const float* gradients, int64_t tokens, int kv_heads, int head_dim, int axis,
                   int group, const float* scaling, const int* widths, int width_count, double* sums) {
  require_pointer("rows", rows);
  require_pointer("gradients", gradients);
  require_pointer("widths", widths);
  require_pointer("sums", sums);
  require_positive("tokens", tokens);
  require_positive("kv_heads", kv_heads);
  require_head_dim(head_dim);
  require_positive("width_count", width_count);
  checked_multiply(checked_multiply(tokens, kv_heads, "tokens times kv_heads"), head_dim * int64_t{8}, "elements");
  if (axis != 0 && axis != 1) refuse("axis is " + std::to_string(axis) + ", not 0 or 1");
  for (int i = 0; i < width_count; ++i) require_width(widths[i]);
  for (int64_t i = 0; scaling != nullptr && i < int64_t{kv_heads} * head_dim; ++i) {
    if (!(scaling[i] > 0.0f && scaling[i] <= std::numeric_limits<float>::max())) {
      refuse("scaling factor " + std::to_string(i) + " is " + float_text(scaling[i]));
    }
  }
  const bool by_channel = axis == 0;
  const Job job = {rows,     gradients,  scaling,    tokens,
                   kv_heads, head_dim,   by_channel, group_of(group, by_channel ? kPageTokens : head_dim),
                   widths,   width_count};

  require_elements(job);

  // A task is a page of one head: groups of tokens never cross pages.
  const int64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
  const int64_t tasks = checked_multiply(pages, kv_heads, "tasks");
  if (tasks > std::numeric_limits<int>::max()) refuse(std::to_string(tokens) + " tokens are too many for one call");
  std::vector<double> partial(static_cast<size_t>(checked_multiply(tasks, width_count, "sums")), 0.0);
  ThreadPool::shared().run(static_cast<int>(tasks), [&](int task) {
    const int64_t first = int64_t{task / kv_heads} * kPageTokens;
    const int64_t end = tokens - first < kPageTokens ? tokens : first + kPageTokens;
    add_page(job, task % kv_heads, first, end, partial.data() + static_cast<size_t>(task) * width_count);
  });
  for (int w = 0; w < width_count; ++w) {
    double sum = 0.0;
    for (int64_t task = 0; task < tasks; ++task) sum += partial[static_cast<size_t>(task) * width_count + w];
    sums[w] = sum;
  }
}

}  // namespace kvasir
