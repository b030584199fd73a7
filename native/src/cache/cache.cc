#include <algorithm>
#include <string>

#include "base/checks.h"
#include "base/scratch.h"
#include "cache/cache_impl.h"

namespace kvasir {
namespace {

[[noreturn]] void unknown(int64_t id) {
  throw Error(ErrorCode::kUnknownSequence, "sequence " + std::to_string(id) + " was released or never existed");
}

std::vector<int64_t> layer_budgets(const CacheConfig::Impl& config) {
  std::vector<int64_t> budgets;
  for (const LayerConfig& layer : config.layers) budgets.push_back(layer.budget);
  return budgets;
}

}  // namespace

Cache::Impl::Impl(const CacheConfig::Impl& config)
    : own_threads_(config.threads > 0 ? new ThreadPool(config.threads) : nullptr),
      engine_(make_engine(config.backend)),
      plans_(plan_layers(config, engine_.kernels)),
      model_(config.model),
      memory_(plans_, *engine_.engine, config.budget, layer_budgets(config), config.shrink_policy) {
  engine().prepare(plans_);
}

int64_t Cache::Impl::new_sequence() { return add(std::make_shared<Sequence>(static_cast<int>(plans_.size()))); }

void Cache::Impl::release(int64_t id) {
  std::shared_ptr<Sequence> released;  // freed outside the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) unknown(id);
  released = std::move(found->second);
  sequences_.erase(found);
}

void Cache::Impl::shift(int64_t id, int64_t first, int64_t offset) {
  if (first < 0) refuse("the first token must not be negative, it is " + std::to_string(first));
  if (offset < -kMostPositionOffset || offset > kMostPositionOffset) refuse("an offset of " + std::to_string(offset));
  for (const LayerPlan& plan : plans_) {
    if (!plan.turns) {
      refuse("layer " + std::to_string(plan.index) + " stores keys after RoPE: their positions cannot change");
    }
  }
  const auto sequence = find(id);
  std::unique_lock<FairSharedMutex> lock(sequence->mutex);
  std::vector<PositionShift> shifts;
  int64_t before = 0;  // the offset at `first`
  for (const PositionShift& each : sequence->shifts) {
    if (each.first > first) break;
    before = each.offset;
    if (each.first < first) shifts.push_back(each);
  }
  shifts.push_back({first, before + offset});
  for (const PositionShift& each : sequence->shifts) {
    if (each.first > first) shifts.push_back({each.first, each.offset + offset});
  }
  for (const PositionShift& each : shifts) {
    if (each.offset < -kMostPositionOffset || each.offset > kMostPositionOffset) {
      refuse("offsets add up to " + std::to_string(each.offset));
    }
  }
  sequence->shifts = std::move(shifts);
}

int64_t Cache::Impl::length(int64_t id, int layer) {
  const LayerPlan& plan = rows_plan_of(layer);
  const auto sequence = find(id);
  std::shared_lock<FairSharedMutex> lock(sequence->mutex);
  return sequence->layers[plan.index].length();
}

int64_t Cache::Impl::add(std::shared_ptr<Sequence> sequence) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t id = next_id_;
  sequences_.emplace(id, std::move(sequence));
  ++next_id_;
  return id;
}

std::shared_ptr<Cache::Impl::Sequence> Cache::Impl::find(int64_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) unknown(id);
  return found->second;
}

std::vector<Cache::Impl::Sequence*> Cache::Impl::distinct(const std::vector<std::shared_ptr<Sequence>>& sequences) {
  std::vector<Sequence*> order;
  for (const auto& sequence : sequences) order.push_back(sequence.get());
  std::sort(order.begin(), order.end());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  return order;
}

const LayerPlan& Cache::Impl::plan_of(int layer) const {
  if (layer < 0 || layer >= static_cast<int>(plans_.size())) {
    refuse("layer " + std::to_string(layer) + " of " + std::to_string(plans_.size()));
  }
  return plans_[layer];
}

float* Cache::Impl::page_scratch() const {
  size_t floats = 0;
  for (const LayerPlan& plan : plans_) {
    const size_t row = static_cast<size_t>(plan.attention.kv_heads + 1) * plan.attention.head_dim;
    floats = std::max(floats, kPageTokens * row);
  }
  struct DecodedPage;
  return thread_scratch<DecodedPage, float>(floats);
}

Cache* Cache::create(const CacheConfig& config) { return new Cache(config); }
void Cache::destroy(Cache* cache) { delete cache; }
Cache::Cache(const CacheConfig& config) : impl_(new Impl(config.impl())) {}
Cache::~Cache() = default;

int64_t Cache::new_sequence() { return impl_->new_sequence(); }
int64_t Cache::fork(int64_t sequence) { return impl_->fork(sequence); }
void Cache::truncate(int64_t sequence, int64_t length) { impl_->truncate(sequence, length); }
void Cache::reserve(int64_t sequence, int64_t tokens) { impl_->reserve(sequence, tokens); }
void Cache::extend(const int64_t* sequences, int count, void* stream) { impl_->extend(sequences, count, stream); }
void Cache::guess(int64_t sequence) { impl_->guess(sequence); }
void Cache::keep(int64_t sequence, const int* kept, int count) { impl_->keep(sequence, kept, count); }
int64_t Cache::rollback(int64_t sequence) { return impl_->rollback(sequence); }
void Cache::release(int64_t sequence) { impl_->release(sequence); }
void Cache::shift(int64_t sequence, int64_t first, int64_t offset) { impl_->shift(sequence, first, offset); }
int64_t Cache::length(int64_t sequence, int layer) { return impl_->length(sequence, layer); }

void Cache::append(int64_t sequence, int layer, const float* keys, const float* values, int64_t tokens) {
  impl_->append(sequence, layer, tokens, {{{keys}, {values}}});
}

void Cache::append_f16(int64_t sequence, int layer, const uint16_t* keys, const uint16_t* values, int64_t tokens) {
  impl_->append(sequence, layer, tokens, {{{keys, ElementType::kFloat16}, {values, ElementType::kFloat16}}});
}

void Cache::append_bf16(int64_t sequence, int layer, const uint16_t* keys, const uint16_t* values, int64_t tokens) {
  impl_->append(sequence, layer, tokens, {{{keys, ElementType::kBFloat16}, {values, ElementType::kBFloat16}}});
}

void Cache::append_rows(int layer, const int64_t* sequences, const int64_t* counts, int count, const RowsView& keys,
                        const RowsView& values) {
  impl_->append(layer, sequences, counts, count, {{keys, values}});
}

void Cache::append_rows_device(int layer, const int64_t* sequences, const int64_t* counts, int count,
                               const RowsView& keys, const RowsView& values, void* stream) {
  impl_->append(layer, sequences, counts, count, {{keys, values}, 0, true, stream});
}

void Cache::attend(const AttendBatch& batch) { impl_->attend(batch); }

void Cache::attend(int layer, const int64_t* sequences, int count, int tokens, const float* queries, float* outputs) {
  AttendBatch batch;
  batch.layer = layer;
  batch.sequences = sequences;
  batch.count = count;
  batch.tokens_each = tokens;
  batch.queries.data = queries;
  batch.outputs.data = outputs;
  impl_->attend(batch);
}

void Cache::append_device(int64_t sequence, int layer, const void* keys, const void* values, ElementType type,
                          int64_t tokens, void* stream) {
  impl_->append(sequence, layer, tokens, {{{keys, type}, {values, type}}, 0, true, stream});
}

void Cache::attend_device(int layer, const int64_t* sequences, int count, int tokens, const void* queries,
                          void* outputs, ElementType type, void* stream) {
  AttendBatch batch;
  batch.layer = layer;
  batch.sequences = sequences;
  batch.count = count;
  batch.tokens_each = tokens;
  batch.queries = {queries, type};
  batch.outputs = {outputs, type};
  batch.on_device = true;
  batch.stream = stream;
  impl_->attend(batch);
}

void Cache::observe(int layer, const int64_t* sequences, int count, int tokens, const float* queries) {
  impl_->observe(layer, sequences, count, tokens, queries);
}

void Cache::read(int64_t sequence, int layer, Side side, int64_t first, int64_t tokens, float* out) {
  impl_->read(sequence, layer, side, first, tokens, out);
}

int64_t Cache::page_count(int64_t sequence, int layer) { return impl_->page_count(sequence, layer); }

int64_t Cache::read_page(int64_t sequence, int layer, int64_t page, Side side, int kv_head, uint8_t* out,
                         int64_t capacity) {
  return impl_->read_page(sequence, layer, page, side, kv_head, out, capacity);
}

int64_t Cache::table_size(int64_t sequence, int layer, Side side) { return impl_->table_size(sequence, layer, side); }

int64_t Cache::read_table(int64_t sequence, int layer, Side side, int kv_head, float* out, int64_t capacity) {
  return impl_->read_table(sequence, layer, side, kv_head, out, capacity);
}

CacheStats* Cache::stats() { return new CacheStats(impl_->stats()); }

}  // namespace kvasir
