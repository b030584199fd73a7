#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include "base/checks.h"
#include "cache/append_batch.h"
#include "cache/cache_impl.h"

namespace kvasir {
namespace {

constexpr int64_t kMostReserved = int64_t{1} << 40;  // tokens; the bytes of more would fit no number

}  // namespace

int64_t Cache::Impl::fork(int64_t id) {
  const ThreadPool::Use threads = use_threads();
  const auto original = find(id);
  const auto copy = std::make_shared<Sequence>(static_cast<int>(plans_.size()));
  std::unique_lock<FairSharedMutex> lock(original->mutex);
  std::vector<std::pair<int, Memory::Needs>> needs;
  std::vector<SequenceLayer::Promise> promised;
  for (const SequenceLayer& layer : original->layers) {
    needs.push_back({static_cast<int>(needs.size()), layer.needs_to_fork()});
    promised.push_back(layer.promised());
  }
  memory_.check_room(needs);
  copy->shifts = original->shifts;
  std::lock_guard<std::mutex> queries(original->queries);
  int64_t forked = 0;
  try {
    for (const LayerPlan& plan : plans_)
      copy->layers[plan.index] = original->layers[plan.index].fork(plan, memory_, engine());
    forked = add(copy);
  } catch (...) {
    for (size_t i = 0; i < promised.size(); ++i) original->layers[i].restore_promise(promised[i]);
    throw;
  }
  for (SequenceLayer& layer : original->layers) layer.end_promise();  // what was to be written in place is shared now
  return forked;
}

void Cache::Impl::truncate(int64_t id, int64_t length) {
  const ThreadPool::Use threads = use_threads();
  if (length < 0) refuse("length must not be negative, it is " + std::to_string(length));
  const auto sequence = find(id);
  std::unique_lock<FairSharedMutex> lock(sequence->mutex);
  cut(*sequence, length);
}

int64_t Cache::Impl::rollback(int64_t id) {
  const ThreadPool::Use threads = use_threads();
  const auto sequence = find(id);
  std::unique_lock<FairSharedMutex> lock(sequence->mutex);
  int64_t length = std::numeric_limits<int64_t>::max();
  for (const LayerPlan& plan : plans_) {
    if (plan.owns_rows()) length = std::min(length, sequence->layers[plan.index].length());
  }
  cut(*sequence, length);
  return length;
}

void Cache::Impl::reserve(int64_t id, int64_t tokens) {
  const ThreadPool::Use threads = use_threads();
  if (tokens < 0 || tokens > kMostReserved) {
    refuse("tokens to reserve must be 0.." + std::to_string(kMostReserved) + ", not " + std::to_string(tokens));
  }
  const auto sequence = find(id);
  std::unique_lock<FairSharedMutex> lock(sequence->mutex);
  for (SequenceLayer& layer : sequence->layers) layer.end_promise();
  if (tokens == 0) return;
  std::vector<std::pair<int, Memory::Needs>> needs;
  for (const LayerPlan& plan : plans_) {
    if (plan.owns_rows()) needs.emplace_back(plan.index, sequence->layers[plan.index].most_needs(plan, tokens));
  }
  std::vector<std::unique_ptr<Pool::Reservation>> rooms;
  for (Pool::Reservation& each : memory_.reserve_least(needs)) {
    rooms.push_back(std::make_unique<Pool::Reservation>(std::move(each)));
  }
  for (size_t i = 0; i < rooms.size(); ++i) {
    sequence->layers[needs[i].first].promise(std::move(rooms[i]), tokens);
  }
}

void Cache::Impl::extend(const int64_t* ids, int count, void* stream) {
  const ThreadPool::Use threads = use_threads();
  if (count < 1) refuse("the number of sequences must be positive, it is " + std::to_string(count));
  require_pointer("sequences", ids);
  std::vector<std::shared_ptr<Sequence>> sequences;
  for (int i = 0; i < count; ++i) sequences.push_back(find(ids[i]));
  const std::vector<Sequence*> order = distinct(sequences);
  if (order.size() != sequences.size()) refuse("a sequence is listed twice in one step");
  const std::unique_ptr<Extension> extension = engine().extend(count, stream);
  std::vector<std::unique_lock<FairSharedMutex>> locks;
  for (Sequence* sequence : order) locks.emplace_back(sequence->mutex);
  std::vector<int64_t> lengths;
  for (int i = 0; i < count; ++i) {
    const SequenceLayer& any = sequences[i]->layers[even_length(ids[i], *sequences[i])];
    if (any.guessing()) refuse("sequence " + std::to_string(ids[i]) + " has guesses");
    if (!sequences[i]->shifts.empty())
      refuse("sequence " + std::to_string(ids[i]) + " was shifted, which no graph sees");
    lengths.push_back(any.length());
  }
  std::vector<std::shared_lock<FairSharedMutex>> pages;
  pages.reserve(plans_.size());
  const auto finish = [&] {
    for (const LayerPlan& plan : plans_) pages.push_back(memory_.read(plan.index));
    extension->finish();
    pages.clear();
  };
  try {
    std::vector<SequenceLayer*> layers(sequences.size());
    std::vector<SequenceView> views(sequences.size());
    for (const LayerPlan& plan : plans_) {
      if (!plan.owns_rows()) continue;
      bool room = true;
      for (size_t i = 0; i < layers.size(); ++i) {
        layers[i] = &sequences[i]->layers[plan.index];
        room = room && layers[i]->has_room(plan);
      }
      if (!room) {
        append_batch(plan, memory_, engine(), layers, *extension->appends(plan));
        continue;
      }
      for (size_t i = 0; i < layers.size(); ++i) {
        layers[i]->extend(plan);
        views[i] = layers[i]->view(plan);
      }
      const auto pages = memory_.read(plan.index);
      extension->tell(plan, views.data());
    }
  } catch (...) {
    finish();  // of the layers that are longer, so that a cut begins with what the device knows
    for (int i = 0; i < count; ++i) cut(*sequences[i], lengths[i]);
    throw;
  }
  finish();
}

void Cache::Impl::guess(int64_t id) {
  const auto sequence = find(id);
  std::unique_lock<FairSharedMutex> lock(sequence->mutex);
  even_length(id, *sequence);
  for (const SequenceLayer& layer : sequence->layers) {
    if (layer.guesses() > 0) refuse("sequence " + std::to_string(id) + " has guesses already");
  }
  for (SequenceLayer& layer : sequence->layers) layer.guess();
}

void Cache::Impl::keep(int64_t id, const int* kept, int count) {
  const ThreadPool::Use threads = use_threads();
  if (count < 0) refuse("the number of guesses must not be negative, it is " + std::to_string(count));
  if (count > 0) require_pointer("kept", kept);
  const std::vector<int> own(kept, kept + count);
  const auto sequence = find(id);
  std::unique_lock<FairSharedMutex> lock(sequence->mutex);
  const SequenceLayer& any = sequence->layers[even_length(id, *sequence)];
  if (!any.guessing()) refuse("sequence " + std::to_string(id) + " has no guesses");
  for (int i = 0; i < count; ++i) {
    if (own[i] < 0 || own[i] >= any.guesses() || (i > 0 && own[i] <= own[i - 1])) {
      refuse("guess " + std::to_string(own[i]) + " of " + std::to_string(any.guesses()) + ", listed as number " +
             std::to_string(i) + ", does not ascend or does not exist");
    }
  }
  std::vector<SequenceLayer::Kept> prepared;
  for (const LayerPlan& plan : plans_) {
    const SequenceLayer& layer = sequence->layers[plan.index];
    prepared.push_back(layer.prepare_keep(plan, memory_, engine(), own.data(), plan.owns_rows() ? count : 0));
  }
  for (const LayerPlan& plan : plans_) {
    sequence->layers[plan.index].keep(plan, memory_, engine(), std::move(prepared[plan.index]));
  }
  for (const LayerPlan& plan : plans_) seal_what_is_due(plan, sequence->layers[plan.index]);
}

int Cache::Impl::even_length(int64_t id, const Sequence& sequence) const {
  const SequenceLayer& first = sequence.layers[plans_.front().source];
  for (const LayerPlan& plan : plans_) {
    const int64_t length = sequence.layers[plan.source].length();
    if (length == first.length()) continue;
    refuse("sequence " + std::to_string(id) + " holds " + std::to_string(first.length()) + " tokens in layer " +
           std::to_string(plans_.front().source) + " and " + std::to_string(length) + " in layer " +
           std::to_string(plan.source));
  }
  return plans_.front().source;
}

void Cache::Impl::seal_what_is_due(const LayerPlan& plan, SequenceLayer& layer) {
  if (!layer.is_due(plan)) return;
  try {
    const std::unique_ptr<Appends> none = engine().begin_appends(plan, {}, {0});
    append_batch(plan, memory_, engine(), {&layer}, *none);
  } catch (const std::bad_alloc&) {
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBudgetExceeded && error.code() != ErrorCode::kOutOfMemory) throw;
  }
}

void Cache::Impl::cut(Sequence& sequence, int64_t length) {
  float* scratch = page_scratch();
  for (const LayerPlan& plan : plans_) sequence.layers[plan.index].check_truncate(plan, length);
  std::vector<SequenceLayer::Cut> cuts;
  for (const LayerPlan& plan : plans_) {
    cuts.push_back(sequence.layers[plan.index].prepare_cut(plan, memory_, engine(), length, scratch));
  }
  for (const LayerPlan& plan : plans_) {
    sequence.layers[plan.index].truncate(plan, memory_, engine(), length, std::move(cuts[plan.index]));
  }
  // A sequence has guesses in all layers or in none: some may not have theirs yet, or never have any.
  const bool guesses = std::any_of(sequence.layers.begin(), sequence.layers.end(),
                                   [](const SequenceLayer& layer) { return layer.guesses() > 0; });
  for (SequenceLayer& layer : sequence.layers) {
    layer.end_promise();
    if (!guesses) layer.end_guesses();
  }
  while (!sequence.shifts.empty() && sequence.shifts.back().first > length) sequence.shifts.pop_back();
}

}  // namespace kvasir
