// Key scaling (PM-KVQ, equations 9-12): maxima at interpolated positions, and the error of candidate factors.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/checked.h"
#include "base/checks.h"
#include "base/rope.h"
#include "base/scratch.h"
#include "base/thread_pool.h"
#include "calibrate/quantiser.h"
#include "kvasir/calibrate.h"

namespace kvasir {
namespace {

using calibrate::Group;
using calibrate::group_of;
using calibrate::Quantiser;
using calibrate::require_width;
using calibrate::stored_value;

// Queries of one task. Fixed, so that sums are cut in the same places on any number of threads.
constexpr int64_t kQueryBlock = 16;
// Tokens whose weighted values are summed in float32 before they join the sum in double.
constexpr int64_t kValueBlock = 64;
constexpr int kMaxDim = 256;
// The published clamp of the factors: K / lambda and Q * lambda stay far from the ends of float16.
constexpr double kLeastFactor = 1e-4;
constexpr double kMostFactor = 1e4;

void require_tensor(const char* name, const float* rows, int64_t tokens, int heads, int head_dim) {
  require_pointer(name, rows);
  require_positive("tokens", tokens);
  require_positive("heads", heads);
  require_head_dim(head_dim);
  checked_multiply(checked_multiply(tokens, heads, name), head_dim * int64_t{8}, name);
}

// Sixteen sums side by side: vectors on every machine, and the same order of additions everywhere.
float dot(const float* a, const float* b, int count) {
  float lanes[16] = {};
  for (int i = 0; i < count; i += 16) {
    for (int l = 0; l < 16; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

// One layer's tensors; head_dim is a multiple of 16.
struct Sample {
  const float* keys;
  const float* values;
  int64_t tokens;
  const float* queries;
  int64_t query_tokens;
  int query_heads, kv_heads, head_dim;
  float softmax_scale;

  size_t kv(int64_t token, int head) const { return (static_cast<size_t>(token) * kv_heads + head) * head_dim; }
  size_t q(int64_t token, int head) const { return (static_cast<size_t>(token) * query_heads + head) * head_dim; }
};

// Keys over the factors of every candidate, as append takes them: in the order of the keys, before threads meet them in
// another. candidates: [count][width].
void require_stored(const float* keys, int64_t tokens, int kv_heads, int head_dim, const float* candidates, int count) {
  const size_t width = static_cast<size_t>(kv_heads) * head_dim;
  std::vector<float> least(candidates, candidates + width);
  for (size_t i = width; i < count * width; ++i) least[i % width] = std::min(least[i % width], candidates[i]);
  for (size_t i = 0; i < tokens * width; ++i) {
    const float stored = keys[i] / least[i % width];
    if (!(std::fabs(stored) <= kMaxMagnitude)) {
      throw calibrate::not_finite("keys over their factors", "keys", kv_heads, head_dim, static_cast<int64_t>(i),
                                  stored);
    }
  }
}

// What remains of the keys of one head that were scaled, stored and read. out: [tokens][head_dim].
void store_and_read(const Sample& s, int head, const float* lambda, int bits, int group, float* out) {
  float stored[kMaxDim] = {};
  for (int64_t t = 0; t < s.tokens; ++t, out += s.head_dim) {
    const float* row = s.keys + s.kv(t, head);
    for (int j = 0; j < s.head_dim; ++j) stored[j] = stored_value(row[j] / lambda[j]);
    for (int first = 0; first < s.head_dim; first += group) {
      const int count = std::min(group, s.head_dim - first);
      const Quantiser quantise(Group(stored + first, count), bits, Grid::kEnds);
      for (int j = first; j < first + count; ++j) out[j] = quantise(stored[j]) * lambda[j];
    }
  }
}

// weights[t] = softmax over t < count of scale * query . keys[t * stride].
void attention_weights(const float* query, const float* keys, size_t stride, int64_t count, int head_dim, float scale,
                       double* weights) {
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t t = 0; t < count; ++t) {
    weights[t] = static_cast<double>(scale * dot(query, keys + static_cast<size_t>(t) * stride, head_dim));
    most = std::max(most, weights[t]);
  }
  double sum = 0.0;
  for (int64_t t = 0; t < count; ++t) sum += weights[t] = std::exp(weights[t] - most);
  for (int64_t t = 0; t < count; ++t) weights[t] /= sum;
}

// Sum over channels of (sum over t < count of weights[t] * values[t])^2.
double output_energy(const Sample& s, int kv_head, const double* weights, int64_t count) {
  double output[kMaxDim] = {};
  for (int64_t first = 0; first < count; first += kValueBlock) {
    float part[kMaxDim] = {};
    for (int64_t t = first; t < std::min(count, first + kValueBlock); ++t) {
      const float weight = static_cast<float>(weights[t]);
      const float* row = s.values + s.kv(t, kv_head);
      for (int j = 0; j < s.head_dim; ++j) part[j] += weight * row[j];
    }
    for (int j = 0; j < s.head_dim; ++j) output[j] += static_cast<double>(part[j]);
  }
  double sum = 0.0;
  for (int j = 0; j < s.head_dim; ++j) sum += output[j] * output[j];
  return sum;
}

// Adds to sums[c] the squared error of candidate c, and to sums[count of candidates] the energy, for the queries of one
// query head. stored: the head's keys by candidate, [candidates][tokens][head_dim].
void add_queries(const Sample& s, int query_head, int64_t first, int64_t end, const float* stored, int candidates,
                 double* sums) {
  struct Weights;
  double* const exact = thread_scratch<Weights, double>(2 * static_cast<size_t>(s.tokens));
  double* const changed = exact + s.tokens;
  const int kv_head = query_head / (s.query_heads / s.kv_heads);
  const size_t row = static_cast<size_t>(s.head_dim);
  for (int64_t i = first; i < end; ++i) {
    const int64_t count = s.tokens - s.query_tokens + i + 1;
    const float* query = s.queries + s.q(i, query_head);
    attention_weights(query, s.keys + s.kv(0, kv_head), row * s.kv_heads, count, s.head_dim, s.softmax_scale, exact);
    sums[candidates] += output_energy(s, kv_head, exact, count);
    for (int c = 0; c < candidates; ++c) {
      const float* keys = stored + static_cast<size_t>(c) * s.tokens * row;
      attention_weights(query, keys, row, count, s.head_dim, s.softmax_scale, changed);
      // The difference of weights, not of outputs: two large sums that nearly cancel never form.
      for (int64_t t = 0; t < count; ++t) changed[t] -= exact[t];
      sums[c] += output_energy(s, kv_head, changed, count);
    }
  }
}

// rows: [tokens][heads][head_dim]; `most` in magnitude, where there is no other limit that of float32.
void require_finite(const char* name, const float* rows, int64_t tokens, int heads, int head_dim,
                    float most = std::numeric_limits<float>::max()) {
  for (int64_t i = 0; i < tokens * heads * head_dim; ++i) {
    // Negated, so that NaN is refused too.
    if (!(std::fabs(rows[i]) <= most)) throw calibrate::not_finite(name, name, heads, head_dim, i, rows[i]);
  }
}

}  // namespace

void raise_key_maxima(const float* keys, int64_t tokens, int kv_heads, int head_dim, RopePairs pairs, float* maxima) {
  require_tensor("keys", keys, tokens, kv_heads, head_dim);
  require_pointer("maxima", maxima);
  require_rope_pairs(pairs);
  const size_t width = static_cast<size_t>(kv_heads) * head_dim;
  require_finite("keys", keys, tokens, kv_heads, head_dim);
  for (int64_t t = 0; t < tokens; ++t) {
    const float* row = keys + static_cast<size_t>(t) * width;
    for (size_t i = 0; i < width; ++i) maxima[i] = std::max(maxima[i], std::fabs(row[i]));
  }
  for (int h = 0; h < kv_heads; ++h) {
    float* head = maxima + static_cast<size_t>(h) * head_dim;
    for (int j = 0; j < head_dim / 2; ++j) {
      const RopePair pair(pairs, j, head_dim);
      head[pair.a] = head[pair.b] = std::max(head[pair.a], head[pair.b]);
    }
  }
}

void scaling_factors(const float* maxima, int64_t count, double alpha, float* lambda) {
  require_pointer("maxima", maxima);
  require_pointer("lambda", lambda);
  require_positive("count", count);
  if (!(alpha >= 0.0 && alpha <= 1.0)) refuse("alpha is " + float_text(alpha) + ", not 0..1");
  for (int64_t i = 0; i < count; ++i) {
    if (!(maxima[i] >= 0.0f) || !std::isfinite(maxima[i])) {
      refuse("maximum " + std::to_string(i) + " is " + float_text(maxima[i]));
    }
    const double factor = maxima[i] == 0.0f ? 1.0 : std::pow(static_cast<double>(maxima[i]), alpha);
    lambda[i] = static_cast<float>(std::min(std::max(factor, kLeastFactor), kMostFactor));
  }
}

void key_scaling_errors(const float* keys, const float* values, int64_t tokens, const float* queries,
                        int64_t query_tokens, int query_heads, int kv_heads, int head_dim, float softmax_scale,
                        int bits, int group, const float* candidates, int candidate_count, double* errors,
                        double* energy) {
  require_tensor("keys", keys, tokens, kv_heads, head_dim);
  require_tensor("values", values, tokens, kv_heads, head_dim);
  require_tensor("queries", queries, query_tokens, query_heads, head_dim);
  require_pointer("candidates", candidates);
  require_pointer("errors", errors);
  require_pointer("energy", energy);
  require_positive("candidate_count", candidate_count);
  require_width(bits);
  if (query_tokens > tokens) {
    refuse(std::to_string(query_tokens) + " query tokens of " + std::to_string(tokens) + " tokens");
  }
  if (query_heads % kv_heads != 0) {
    refuse(std::to_string(query_heads) + " query heads are no multiple of " + std::to_string(kv_heads) + " kv heads");
  }
  if (!(softmax_scale > 0.0f) || !std::isfinite(softmax_scale)) {
    refuse("softmax_scale is " + float_text(softmax_scale));
  }
  const int channels = group_of(group, head_dim);
  const size_t width = static_cast<size_t>(kv_heads) * head_dim;
  const int64_t lambdas = checked_multiply(candidate_count, static_cast<int64_t>(width), "candidates");
  for (int64_t i = 0; i < lambdas; ++i) {
    if (!(candidates[i] > 0.0f) || !std::isfinite(candidates[i])) {
      refuse("factor " + std::to_string(i) + " is " + float_text(candidates[i]));
    }
  }
  require_finite("keys", keys, tokens, kv_heads, head_dim);
  require_finite("values", values, tokens, kv_heads, head_dim, kMaxMagnitude);
  require_finite("queries", queries, query_tokens, query_heads, head_dim);
  require_stored(keys, tokens, kv_heads, head_dim, candidates, candidate_count);
  const int64_t head_keys = checked_multiply(tokens, head_dim, "keys of a head");
  const int64_t all_keys = checked_multiply(candidate_count, head_keys, "keys of all candidates");
  checked_multiply(all_keys, int64_t{sizeof(float)} * 2, "bytes of all candidates");
  const int64_t blocks = (query_tokens + kQueryBlock - 1) / kQueryBlock;
  const int per_head = query_heads / kv_heads;
  const int64_t tasks = checked_multiply(blocks, per_head, "tasks");
  if (tasks > std::numeric_limits<int>::max()) {
    refuse(std::to_string(tokens) + " tokens are too many for one call");
  }

  const Sample sample = {keys, values, tokens, queries, query_tokens, query_heads, kv_heads, head_dim, softmax_scale};
  const AlignedArray<float> stored = make_aligned<float>(static_cast<size_t>(all_keys));
  const size_t columns = static_cast<size_t>(candidate_count) + 1;
  std::vector<double> totals(columns, 0.0);
  for (int head = 0; head < kv_heads; ++head) {
    ThreadPool::shared().run(candidate_count, [&](int c) {
      const float* lambda = candidates + static_cast<size_t>(c) * width + static_cast<size_t>(head) * head_dim;
      store_and_read(sample, head, lambda, bits, channels, stored.get() + static_cast<size_t>(c) * head_keys);
    });
    std::vector<double> partial(static_cast<size_t>(tasks) * columns, 0.0);
    ThreadPool::shared().run(static_cast<int>(tasks), [&](int task) {
      const int64_t first = int64_t{task / per_head} * kQueryBlock;
      add_queries(sample, head * per_head + task % per_head, first, std::min(query_tokens, first + kQueryBlock),
                  stored.get(), candidate_count, partial.data() + static_cast<size_t>(task) * columns);
    });
    for (size_t i = 0; i < partial.size(); ++i) totals[i % columns] += partial[i];
  }
  for (const double total : totals) {
    if (!std::isfinite(total)) {
      throw Error(ErrorCode::kNotFinite, "products of these keys and queries leave float32: attention is no number");
    }
  }
  for (int c = 0; c < candidate_count; ++c) errors[c] = totals[static_cast<size_t>(c)];
  *energy = totals.back();
}

}  // namespace kvasir
