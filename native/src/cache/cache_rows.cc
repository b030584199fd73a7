#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "attention/attention.h"
#include "base/aligned.h"
#include "base/checked.h"
#include "base/checks.h"
#include "base/half.h"
#include "base/row_views.h"
#include "cache/append_batch.h"
#include "cache/cache_impl.h"

namespace kvasir {
namespace {

// Elements of `tokens` queries of each of `count` sequences.
size_t query_elements(const LayerPlan& plan, int count, int tokens) {
  const int64_t row = int64_t{plan.attention.query_heads} * plan.attention.query_dim();
  const int64_t elements = checked_multiply(int64_t{count} * tokens, row, "query tokens times query size");
  checked_multiply(elements, static_cast<int64_t>(sizeof(float)), "bytes of queries");
  return static_cast<size_t>(elements);
}

// Queries are read once: after that the caller, or the outputs where they overlap, may write to them.
AlignedArray<float> copy_of(const float* queries, size_t elements) {
  AlignedArray<float> copy = make_aligned<float>(elements);
  std::memcpy(copy.get(), queries, elements * sizeof(float));
  return copy;
}

void require_finite(const LayerPlan& plan, const float* queries, size_t elements) {
  const auto finite = [](float value) { return (float_bits(value) & 0x7F800000u) != 0x7F800000u; };
  // By bits and without a way out: compilers vectorise this, and not comparisons of floats.
  bool good = true;
  for (size_t i = 0; i < elements; ++i) good &= finite(queries[i]);
  if (good) return;
  const size_t index = std::find_if_not(queries, queries + elements, finite) - queries;
  throw not_finite("queries", plan.index, plan.attention.query_heads, plan.attention.query_dim(),
                   static_cast<int64_t>(index), queries[index]);
}

// The rows of an append with their strides spelled out, as they are stored.
void check_token_rows(const LayerPlan& plan, TokenRows& rows) {
  const AttentionLayer& layer = plan.attention;
  if (!layer.latent()) {
    for (int side = 0; side < 2; ++side) {
      rows.sides[side] =
          checked_rows(side == 0 ? "keys" : "values", rows.sides[side], rows.tokens, layer.kv_heads, layer.head_dim);
    }
    return;
  }
  if (rows.sides[1].data) {
    refuse("layer " + std::to_string(plan.index) + " has one row for keys and values: values must be null");
  }
  RowsView& first = rows.sides[0];
  first = checked_rows("keys", first, rows.tokens, 1, layer.row_dim);
  first.head_stride = layer.head_dim;
  rows.sides[1] = first;
  rows.sides[1].data = row_at(first, 0, layer.kv_heads);
}

}  // namespace

void Cache::Impl::append(int64_t id, int layer, int64_t tokens, const TokenRows& rows) {
  if (tokens < 1) refuse("tokens must be positive, it is " + std::to_string(tokens));
  append(layer, &id, &tokens, 1, rows);
}

void Cache::Impl::append(int layer, const int64_t* ids, const int64_t* counts, int count, TokenRows rows) {
  const ThreadPool::Use threads = use_threads();
  const LayerPlan& plan = plan_of(layer);
  if (!plan.owns_rows()) {
    refuse("layer " + std::to_string(layer) + " takes keys and values from layer " + std::to_string(plan.source) +
           ": they are appended there");
  }
  if (count < 1) refuse("the number of sequences must be positive, it is " + std::to_string(count));
  require_pointer("sequences", ids);
  require_pointer("counts", counts);
  std::vector<std::shared_ptr<Sequence>> sequences;
  std::vector<int64_t> tokens;
  rows.tokens = 0;
  for (int i = 0; i < count; ++i) {
    if (counts[i] < 0)
      refuse("tokens must not be negative, of sequence " + std::to_string(ids[i]) + " they are " +
             std::to_string(counts[i]));
    rows.tokens = checked_add(rows.tokens, counts[i], "tokens of all sequences");
    auto sequence = find(ids[i]);
    if (counts[i] == 0) continue;
    sequences.push_back(std::move(sequence));
    tokens.push_back(counts[i]);
  }
  if (rows.tokens < 1) refuse("tokens must be positive, they are 0");
  const std::vector<Sequence*> order = distinct(sequences);
  if (order.size() != sequences.size()) refuse("a sequence is listed twice in one append");
  const int64_t elements = checked_multiply(rows.tokens, plan.elements_per_token(), "tokens times row size");
  checked_multiply(elements, static_cast<int64_t>(sizeof(float)), "bytes of rows");
  check_token_rows(plan, rows);
  if (rows.on_device && engine().capturing(rows.stream)) return capture_append(plan, sequences, tokens, rows);
  const std::unique_ptr<Appends> appends = engine().begin_appends(plan, rows, tokens);
  std::vector<std::unique_lock<FairSharedMutex>> locks;
  for (Sequence* sequence : order) locks.emplace_back(sequence->mutex);
  std::vector<SequenceLayer*> layers;
  for (size_t i = 0; i < sequences.size(); ++i) {
    layers.push_back(&sequences[i]->layers[layer]);
    if (layers.back()->guessing() && layers.back()->guesses() + tokens[i] > kMaxMaskedTokens) {
      refuse(std::to_string(tokens[i]) + " more guesses for " + std::to_string(layers.back()->guesses()) + ": " +
             std::to_string(kMaxMaskedTokens) + " are the most");
    }
    checked_add(layers.back()->length(), tokens[i], "length plus tokens");
  }
  append_batch(plan, memory_, engine(), layers, *appends);
}

void Cache::Impl::capture_append(const LayerPlan& plan, const std::vector<std::shared_ptr<Sequence>>& sequences,
                                 const std::vector<int64_t>& counts, const TokenRows& rows) {
  std::vector<std::shared_lock<FairSharedMutex>> locks;
  for (Sequence* sequence : distinct(sequences)) locks.emplace_back(sequence->mutex);
  std::vector<SequenceView> views;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (counts[i] != 1) refuse("one token of a sequence can be captured in a graph, not " + std::to_string(counts[i]));
    views.push_back(sequences[i]->layers[plan.index].view(plan));
    if (!views.back().state) refuse("a sequence without tokens cannot be captured in a graph");
  }
  engine().capture_append(plan, rows, views);
}

void Cache::Impl::attend(const AttendBatch& batch) {
  const ThreadPool::Use threads = use_threads();
  const LayerPlan& plan = plan_of(batch.layer);
  if (batch.count < 1) refuse("the number of sequences must be positive, it is " + std::to_string(batch.count));
  require_pointer("sequences", batch.sequences);
  std::vector<std::shared_ptr<Sequence>> sequences;
  for (int i = 0; i < batch.count; ++i) sequences.push_back(find(batch.sequences[i]));
  QueryBatch queries(plan, batch);
  std::vector<std::shared_lock<FairSharedMutex>> locks;
  for (Sequence* sequence : distinct(sequences)) locks.emplace_back(sequence->mutex);
  auto pages = memory_.read(plan.source);
  std::vector<SequenceView> views;
  for (int i = 0; i < batch.count; ++i) {
    const SequenceLayer& each = sequences[i]->layers[plan.source];
    check_visible(plan, each, batch.sequences[i], queries.runs()[i].tokens);
    views.push_back(each.view(plans_[plan.source]));
    views.back().shifts = sequences[i]->shifts.data();
    views.back().shift_count = static_cast<int>(sequences[i]->shifts.size());
    queries.place_guesses(i, views.back());
  }
  queries.take();  // not before all is checked: a count that is refused may be more than the caller has
  const AttentionRequest request = {&plan.attention, views.data(),       queries.runs().data(),
                                    batch.count,     queries.queries(),  batch.on_device ? nullptr : queries.outputs(),
                                    batch.log_sums,  batch.learned_sinks};
  const Engine::Tiles tiles =
      batch.on_device ? engine().attend(plan, request, queries.device()) : engine().attend(plan, request);
  tiles_ += tiles.computed;
  fallback_tiles_ += tiles.fallback;
  if (plan.wants_queries) {
    pages = {};  // a fork holds a lock of those below while it waits for pages to shrink
    observe_attended(plan, sequences, batch.on_device, queries);
  }
  queries.deliver();
}

void Cache::Impl::observe(int layer, const int64_t* ids, int count, int tokens, const float* queries) {
  const ThreadPool::Use threads = use_threads();
  const LayerPlan& plan = plan_of(layer);
  if (count < 1) refuse("the number of sequences must be positive, it is " + std::to_string(count));
  if (tokens < 1) refuse("the number of query tokens must be positive, it is " + std::to_string(tokens));
  require_pointer("sequences", ids);
  require_pointer("queries", queries);
  std::vector<std::shared_ptr<Sequence>> sequences;
  for (int i = 0; i < count; ++i) sequences.push_back(find(ids[i]));
  const size_t elements = query_elements(plan, count, tokens);
  const AlignedArray<float> own = copy_of(queries, elements);
  require_finite(plan, own.get(), elements);
  if (!plan.wants_queries) return;
  std::vector<std::unique_lock<FairSharedMutex>> locks;
  for (Sequence* sequence : distinct(sequences)) locks.emplace_back(sequence->mutex);
  std::map<Sequence*, QueryMeans> fresh;  // of sequences that saw none so far: theirs when nothing can fail any more
  std::vector<uint8_t*> sums;
  std::vector<QueryRun> runs;
  for (int i = 0; i < count; ++i) {
    Sequence* const sequence = sequences[i].get();
    QueryMeans& known = sequence->layers[plan.source].queries();
    QueryMeans& means = known ? known : fresh[sequence];
    if (!means) {
      const LayerPlan& rows = plans_[plan.source];
      Block block = memory_.take(rows.index, BlockKind::kRows, QuerySums::bytes(rows.attention));
      means.begin(rows, engine(), std::move(block));
    }
    sums.push_back(means.sums());
    runs.push_back({int64_t{i} * tokens, tokens});
  }
  engine().add_queries(plan, sums.data(), runs, own.get());
  for (auto& [sequence, begun] : fresh) sequence->layers[plan.source].queries() = std::move(begun);
}

void Cache::Impl::check_visible(const LayerPlan& plan, const SequenceLayer& layer, int64_t id, int tokens) const {
  if (layer.length() < tokens) {
    refuse("sequence " + std::to_string(id) + " holds " + std::to_string(layer.length()) + " tokens in layer " +
           std::to_string(plan.index) + ", fewer than the " + std::to_string(tokens) + " that attend");
  }
  const int64_t oldest = layer.length() - tokens - plan.attention.sliding_window + 1;
  if (plan.attention.sliding_window != 0 &&
      std::max<int64_t>(oldest, plan.sinks) < layer.first_held(plans_[plan.source])) {
    refuse("sequence " + std::to_string(id) + ": the sliding window of layer " + std::to_string(plan.index) +
           " left tokens behind that the oldest of " + std::to_string(tokens) + " queries would see");
  }
}

void Cache::Impl::observe_attended(const LayerPlan& plan, const std::vector<std::shared_ptr<Sequence>>& sequences,
                                   bool on_device, const QueryBatch& queries) {
  std::vector<std::unique_lock<std::mutex>> observing;
  for (Sequence* sequence : distinct(sequences)) observing.emplace_back(sequence->queries);
  const LayerPlan& rows = plans_[plan.source];
  std::map<Sequence*, QueryMeans> fresh;  // of sequences that saw none so far
  std::vector<uint8_t*> sums;
  for (const auto& sequence : sequences) {
    QueryMeans& known = sequence->layers[rows.index].queries();
    QueryMeans& means = known ? known : fresh[sequence.get()];
    if (!means) {
      const int64_t bytes = QuerySums::bytes(rows.attention);
      means.begin(rows, engine(), memory_.pool().overdraw(rows.index, bytes).take(BlockKind::kRows, bytes));
    }
    sums.push_back(means.sums());
  }
  if (on_device) {
    engine().add_queries(plan, sums.data(), queries.runs(), queries.device());
  } else {
    engine().add_queries(plan, sums.data(), queries.runs(), queries.queries());
  }
  for (auto& [sequence, begun] : fresh) sequence->layers[rows.index].queries() = std::move(begun);
}

}  // namespace kvasir
