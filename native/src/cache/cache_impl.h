#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/fair_shared_mutex.h"
#include "base/thread_pool.h"
#include "cache/config.h"
#include "cache/layer.h"
#include "cache/memory.h"
#include "cache/plan.h"
#include "cache/query_batch.h"
#include "cache/saving/saving.h"
#include "cache/stats.h"
#include "engine/engines.h"
#include "kvasir/cache.h"

namespace kvasir {

/// What stands behind a Cache, its verbs in files of their own: sequences come and go in cache.cc, rows come in and are
/// attended to in cache_rows.cc, steps are promised, guessed and taken back in cache_steps.cc, cache_inspection.cc
/// shows what is there, and saving/cache_saving.cc makes bytes of it and back.
///
/// Locks, outermost first: those of sequences, several of them in the order of their addresses; a sequence's `queries`;
/// those of `memory_`.
class Cache::Impl {
 public:
  explicit Impl(const CacheConfig::Impl& config);

  // cache.cc
  int64_t new_sequence();
  void release(int64_t id);
  void shift(int64_t id, int64_t first, int64_t offset);
  int64_t length(int64_t id, int layer);

  // cache_steps.cc
  int64_t fork(int64_t id);
  void truncate(int64_t id, int64_t length);
  int64_t rollback(int64_t id);
  void reserve(int64_t id, int64_t tokens);
  void extend(const int64_t* ids, int count, void* stream);
  void guess(int64_t id);
  void keep(int64_t id, const int* kept, int count);

  // cache_rows.cc
  void append(int64_t id, int layer, int64_t tokens, const TokenRows& rows);
  /// The rows of sequence i are the next counts[i].
  void append(int layer, const int64_t* ids, const int64_t* counts, int count, TokenRows rows);
  void attend(const AttendBatch& batch);
  void observe(int layer, const int64_t* ids, int count, int tokens, const float* queries);

  // cache_inspection.cc
  void read(int64_t id, int layer, Side side, int64_t first, int64_t tokens, float* out);
  int64_t page_count(int64_t id, int layer);
  int64_t read_page(int64_t id, int layer, int64_t page, Side side, int kv_head, uint8_t* out, int64_t capacity);
  int64_t table_size(int64_t id, int layer, Side side);
  int64_t read_table(int64_t id, int layer, Side side, int kv_head, float* out, int64_t capacity);
  std::unique_ptr<CacheStats::Impl> stats();

  // saving/cache_saving.cc
  std::unique_ptr<Saving::Impl> save(int64_t id);
  std::unique_ptr<Restoring::Impl> restore(std::optional<int64_t> behind);
  std::shared_ptr<uint8_t> image_memory(int64_t bytes);
  const Identity& identity();
  const std::vector<LayerPlan>& plans() const { return plans_; }

 private:
  struct Sequence {
    explicit Sequence(int layers) : layers(layers) {}
    FairSharedMutex mutex;  // writers alone, readers together
    std::mutex queries;     // what readers, too, write: the query means of its layers
    std::vector<SequenceLayer> layers;
    std::vector<PositionShift> shifts;  // ascending
  };

  int64_t add(std::shared_ptr<Sequence> sequence);
  std::shared_ptr<Sequence> find(int64_t id);
  /// Each once, in the order in which they are locked: waiting writers then cannot tie readers into a knot.
  static std::vector<Sequence*> distinct(const std::vector<std::shared_ptr<Sequence>>& sequences);

  const LayerPlan& plan_of(int layer) const;
  /// Of the layer whose rows it attends to.
  const LayerPlan& rows_plan_of(int layer) const { return plans_[plan_of(layer).source]; }
  /// Room for one side of one decoded page of any layer, and for one of its heads.
  float* page_scratch() const;
  Engine& engine() { return *engine_.engine; }
  SavingPlace saving_place();
  /// A sequence as it is now; its pages by reference.
  SequenceImage image_of(int64_t id);
  /// For the time of a verb that computes.
  ThreadPool::Use use_threads() { return ThreadPool::Use(own_threads_ ? *own_threads_ : ThreadPool::shared()); }

  /// A layer of the length that all have.
  int even_length(int64_t id, const Sequence& sequence) const;
  /// Every layer to at most `length` tokens, or nothing changes. With the sequence's lock held.
  void cut(Sequence& sequence, int64_t length);
  /// As an append does it; where there is no memory for it, the next one will.
  void seal_what_is_due(const LayerPlan& plan, SequenceLayer& layer);

  /// Into a graph: rows of the newest token of each sequence.
  void capture_append(const LayerPlan& plan, const std::vector<std::shared_ptr<Sequence>>& sequences,
                      const std::vector<int64_t>& counts, const TokenRows& rows);
  void check_visible(const LayerPlan& plan, const SequenceLayer& layer, int64_t id, int tokens) const;
  /// Queries that were attended with go to the sums of what they looked at.
  void observe_attended(const LayerPlan& plan, const std::vector<std::shared_ptr<Sequence>>& sequences, bool on_device,
                        const QueryBatch& queries);
  /// Cache::read, where keys and values share a row.
  void read_shared(const LayerPlan& plan, const SequenceLayer& layer, Side side, int64_t first, int64_t tokens,
                   float* out, float* scratch);
  /// What the parts of pages are like; pages that were counted already, for another sequence, are left out.
  void count_parts(const LayerPlan& plan, const SequenceLayer& layer, std::set<const PageView*>& counted,
                   LayerStats& stats);

  const std::unique_ptr<ThreadPool> own_threads_;  // null: the library's
  const ChosenEngine engine_;
  const std::vector<LayerPlan> plans_;
  const std::string model_;
  std::once_flag identified_;  // hashing codebooks takes a while: not before somebody asks
  std::unique_ptr<const Identity> identity_;
  Memory memory_;
  std::mutex mutex_;  // guards the map, not the sequences
  std::map<int64_t, std::shared_ptr<Sequence>> sequences_;
  int64_t next_id_ = 1;
  std::atomic<int64_t> tiles_{0};
  std::atomic<int64_t> fallback_tiles_{0};
};

}  // namespace kvasir
