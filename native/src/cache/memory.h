// The memory of a cache: a pool under budgets, and pages that give up precision where those run out.
//
// Whoever needs bytes asks make_room. Where a budget does not hold them, pages that can shrink drop to half their bits,
// or an eighth of a bit less where the codec is spectral, one step at a time, until it does: first those with the most
// bits, among these the oldest (ShrinkPolicy::kOldest), or all such pages of a layer at once (kLayer). Pages about to
// be sealed count as the youngest, and begin narrower where they would take what is lent (below). If even the floor of
// every page would not do, nothing changes and kBudgetExceeded says what is missing.
//
// Under kOldest, sealing n pages that halve shrinks at most 3 n others where layers are alike: a page of b bits has at
// most three times the bytes that a shrink from b bits frees. Spectral ones have at most 8 b + 3 times these.
//
// What is promised (Pool::Reservation) is promised at the floor. Pages that take more of it than they would there are a
// loan: there is always as much room, or pages have as much to give up, as promises have lent. Nobody else is given
// that, whoever gives it up, and a promise that has nothing left takes back what it lent; where bytes that no budget
// stops (Pool::overdraw) took it meanwhile, beyond the budget.
//
// A shrink happens in place, under a lock per layer that excludes the readers of its pages: see `read`.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "base/fair_shared_mutex.h"
#include "base/thread_pool.h"
#include "cache/pool.h"
#include "engine/engine.h"

namespace kvasir {

class Memory;

// A sealed page; forks share it.
class Page {
 public:
  // sizes: of all parts, in order; looked at where the shape varies.
  Page(Memory& memory, int layer, Block block, const PageShape& shape, const uint32_t* sizes);
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  const PageView& view() const { return view_; }
  int64_t bytes() const { return block_.bytes(); }
  NewPage to_seal(int64_t number) { return {&view_, block_.data(), number}; }

 private:
  friend class Memory;
  using Ranks = std::map<int64_t, Page*>;  // by age

  Memory& memory_;
  const int layer_;
  Block block_;
  std::vector<uint32_t> offsets_;  // of parts and the end, where they vary
  PageView view_;
  bool enlisted_ = false;
  int64_t age_ = 0;
  Ranks::node_type node_;  // while not enlisted: so that enlisting cannot fail
};

class Memory {
 public:
  // What happened to the pages of a layer.
  struct Shrinks {
    int64_t count = 0;
    int64_t freed_bytes = 0;
    int64_t nanoseconds = 0;
  };
  // Sealed pages of a layer when `bits` first became the most that it still had room for.
  struct Step {
    int bits;
    int64_t pages;
  };

  // The plans and the engine must outlive the memory.
  Memory(const std::vector<LayerPlan>& plans, Engine& engine, int64_t budget, std::vector<int64_t> layer_budgets,
         ShrinkPolicy policy);

  struct Room {
    Pool::Reservation bytes;
    std::vector<const PageShape*> shapes;  // of the pages, oldest first
    std::vector<int64_t> loans;            // by needs: of what their promises gave, for `enlist`
  };
  // What a layer of a sequence needs.
  struct Needs {
    int64_t bytes = 0;  // beside pages
    int64_t pages = 0;
    int64_t returning = 0;                  // bytes that go back as soon as the others are there
    Pool::Reservation* promised = nullptr;  // what is taken first
  };
  // Room for all of them, in one layer. Throws kBudgetExceeded.
  Room make_room(int layer, const std::vector<Needs>& all);
  // One block, with room made for it. Throws kBudgetExceeded or kOutOfMemory.
  Block take(int layer, BlockKind kind, int64_t bytes, BlockPlace place = BlockPlace::kEngine,
             Pool::Reservation* promised = nullptr);
  // Before any of several calls of make_room: throws kBudgetExceeded where one of them would, so that no page gives up
  // precision for nothing. Each of the needs is those of a layer.
  void check_room(const std::vector<std::pair<int, Needs>>& all);

  // Room for each of the needs, those of a layer, with pages as narrow as they get: what is there when they are sealed
  // may make them wider. Throws kBudgetExceeded, and then no page has shrunk.
  std::vector<Pool::Reservation> reserve_least(const std::vector<std::pair<int, Needs>>& all);

  // Room for bytes of a layer, where nothing has to give way for it.
  std::optional<Pool::Reservation> try_take(int layer, int64_t bytes);

  // From now on the pages may shrink, if they could not before, and the loan that they are is one. Cannot fail.
  void enlist(const std::vector<std::shared_ptr<Page>>& pages, Pool::Reservation* promised = nullptr, int64_t loan = 0);

  // While it is held, pages of the layer stay as they are. Take it after the locks of sequences; let no page die under
  // it.
  std::shared_lock<FairSharedMutex> read(int layer);

  Pool& pool() { return *pool_; }
  // Whether pages of any layer can give up precision to make room.
  bool can_shrink() const { return can_shrink_; }
  Shrinks shrinks(int layer);
  std::vector<Step> steps(int layer);

 private:
  friend class Page;
  struct Layer {
    FairSharedMutex pages;
    std::vector<Page::Ranks> ranks;  // by shape
    int64_t sealed = 0;
    Shrinks shrinks;
    std::vector<Step> steps;
  };
  // Where the next shrink would happen.
  struct Candidates {
    int layer = -1;
    int level = 0;
    int width = 0;
  };

  void forget(Page& page);
  int64_t freeable(int layer) const;
  int64_t freeable() const;
  bool leaves_loans(int layer, int64_t bytes) const;
  int64_t least(int layer, const Needs& needs) const;
  void require_floors(const std::vector<std::pair<int, Needs>>& all) const;
  void require_layer_floor(int layer, int64_t bytes) const;
  void require_cache_floor(int layer, int64_t bytes) const;
  Candidates most_bits(int layer, bool whole_cache) const;
  void shrink_some(const Candidates& at);
  void note_step(int layer, size_t level);

  const std::vector<LayerPlan>& plans_;
  Engine& engine_;
  const std::shared_ptr<Pool> pool_;
  const ShrinkPolicy policy_;
  bool can_shrink_ = false;
  std::mutex mutex_;  // guards what follows; held while room is made
  std::vector<std::unique_ptr<Layer>> layers_;
  std::atomic<int64_t> next_age_{0};
};

}  // namespace kvasir
