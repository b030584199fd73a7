// Random walks over what is reserved: calls of all kinds against a model that knows only lengths and what is promised.
// No append within a promise is ever refused, and in the end nothing is held and nothing lent.
#include <algorithm>
#include <map>
#include <new>
#include <vector>

#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/failing_memory.h"
#include "support/saved.h"

namespace {

using kvasir::ErrorCode;

constexpr int kMostTokens = 300;  // in an append
constexpr int kMostSequences = 6;

struct Layers {
  std::vector<int64_t> lengths;
  std::vector<int64_t> promised;  // tokens
  int64_t guesses_from = -1;

  explicit Layers(int layers) : lengths(layers), promised(layers) {}
  int64_t shortest() const { return *std::min_element(lengths.begin(), lengths.end()); }
  int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
  bool is_promised() const { return *std::max_element(promised.begin(), promised.end()) > 0; }
  bool even() const { return shortest() == longest(); }
  void end_promise() { std::fill(promised.begin(), promised.end(), 0); }
  void append(int layer, int64_t tokens) {
    lengths[layer] += tokens;
    promised[layer] = std::max<int64_t>(0, promised[layer] - tokens);
  }
  void cut(int64_t length) {
    for (int64_t& each : lengths) each = std::min(each, length);
    if (longest() <= guesses_from) guesses_from = -1;
    end_promise();
  }
};

class PromiseWalk {
 public:
  // cuts: whether sequences are cut, too, which may overdraw a budget.
  PromiseWalk(const support::CacheChoice& choice, bool cuts, uint64_t seed)
      : choice_(choice), cuts_(cuts), cache_(support::make_cache(choice)), random_(seed) {
    for (const auto& layer : choice.layers) {
      rows_.push_back(
          support::make_half_rows(support::Profile::kOutliers, seed, 2 * kMostTokens + 40, layer.row_size()));
    }
  }

  int refused() const { return refused_; }
  int kept() const { return kept_; }

  void step() {
    const int kind = random_.below(cuts_ ? 24 : 18);
    const int64_t id = held_.empty() ? 0 : any();
    const bool has_place = held_.size() < kMostSequences;
    if (!hoarded_.empty() && random_.chance(0.1)) hoard();
    if (held_.empty() || (kind == 0 && has_place)) {
      held_.emplace(cache_->new_sequence(), Layers(layers()));
    } else if (kind == 1 && has_place) {
      save_or_restore();
    } else if (kind == 2) {
      append_to_two();
    } else if (kind == 3) {
      hoard();
    } else if (kind <= 11 || (held_.at(id).is_promised() && random_.chance(0.95))) {  // or few promises would be used
      append(id);
    } else if (kind <= 14) {
      reserve(id);
    } else if (kind == 15) {
      release(id);
    } else if (kind <= 17) {
      if (has_place) fork(id);
    } else if (kind <= 20) {
      cut(id);
    } else {
      guess_or_keep(id);
    }
    for (const auto& [id, model] : held_) {
      for (int layer = 0; layer < layers(); ++layer) {
        if (cache_->length(id, layer) != model.lengths[layer]) FAIL("another length of layer ", layer);
      }
    }
    if (cuts_) return;
    const auto stats = support::stats_of(*cache_);
    REQUIRE((choice_.budget == 0 || stats->peak_bytes() <= choice_.budget));
    for (int layer = 0; layer < layers(); ++layer) {
      REQUIRE((choice_.layers[layer].budget == 0 || stats->layer_bytes(layer) <= choice_.layers[layer].budget));
    }
  }

  // Then all of the budget can be promised again, as at first.
  void end() {
    while (!held_.empty()) release(held_.begin()->first);
    if (!hoarded_.empty()) hoard();
    CHECK(support::stats_of(*cache_)->bytes() == 0);
    const support::CachePointer fresh = support::make_cache(choice_);
    const int64_t here = cache_->new_sequence(), there = fresh->new_sequence();
    const auto holds = [](kvasir::Cache& cache, int64_t id, int64_t tokens) {
      try {
        cache.reserve(id, tokens);
        return true;
      } catch (const kvasir::Error&) {
        return false;
      }
    };
    for (int64_t tokens = 64; tokens < 200'000; tokens += tokens / 8) {
      CHECK(holds(*cache_, here, tokens) == holds(*fresh, there, tokens));
    }
  }

 private:
  int layers() const { return static_cast<int>(choice_.layers.size()); }
  int64_t any() { return std::next(held_.begin(), random_.below(static_cast<int>(held_.size())))->first; }
  const float* rows(int layer) { return rows_[layer].data() + random_.below(40) * choice_.layers[layer].row_size(); }

  // Runs a call that a budget may refuse, or memory that runs out.
  template <class Call>
  bool permitted(bool promised, const Call& call) {
    try {
      if (random_.below(12) == 0) {
        const support::FailingMemory memory(1 + random_.below(60));
        call();
      } else {
        call();
      }
      return true;
    } catch (const std::bad_alloc&) {
    } catch (const kvasir::Error& error) {
      if (error.code() == ErrorCode::kOutOfMemory) return false;
      REQUIRE_MESSAGE(error.code() == ErrorCode::kBudgetExceeded, error.what());
      REQUIRE_MESSAGE(!promised, error.what());
      ++refused_;
    }
    return false;
  }

  int tokens_for(const Layers& model, int layer) {
    if (model.guesses_from >= 0) {
      return static_cast<int>(std::min<int64_t>(random_.below(4), 60 - (model.lengths[layer] - model.guesses_from)));
    }
    if (model.lengths[layer] > 2000) return 0;
    return 1 + random_.below(random_.chance(0.6) ? kMostTokens : 10);
  }

  void append(int64_t id) {
    Layers& model = held_.at(id);
    const int layer = random_.below(layers());
    int64_t tokens = tokens_for(model, layer);
    // Mostly no more than is promised.
    if (model.promised[layer] > 0 && random_.chance(0.8)) tokens = std::min(tokens, model.promised[layer]);
    if (tokens <= 0) return;
    const bool promised = tokens <= model.promised[layer];
    kept_ += promised;
    if (permitted(promised, [&] { cache_->append(id, layer, rows(layer), rows(layer), tokens); })) {
      model.append(layer, tokens);
    }
  }

  void append_to_two() {
    const int64_t ids[] = {any(), any()};
    if (ids[0] == ids[1]) return;
    const int layer = random_.below(layers());
    int64_t counts[2];
    bool promised = true;
    for (int i = 0; i < 2; ++i) {
      counts[i] = std::max(0, tokens_for(held_.at(ids[i]), layer));
      promised = promised && counts[i] <= held_.at(ids[i]).promised[layer];
    }
    if (counts[0] + counts[1] == 0) return;
    kvasir::RowsView view;
    view.data = rows(layer);
    if (!permitted(promised, [&] { cache_->append_rows(layer, ids, counts, 2, view, view); })) return;
    for (int i = 0; i < 2; ++i) held_.at(ids[i]).append(layer, counts[i]);
  }

  void reserve(int64_t id) {
    Layers& model = held_.at(id);
    const int64_t tokens = random_.below(random_.chance(0.5) ? 2000 : 100);
    model.end_promise();
    if (permitted(false, [&] { cache_->reserve(id, tokens); })) {
      std::fill(model.promised.begin(), model.promised.end(), tokens);
    }
  }

  void fork(int64_t id) {
    int64_t copy = 0;
    if (!permitted(false, [&] { copy = cache_->fork(id); })) return;
    held_.at(id).end_promise();
    held_.emplace(copy, held_.at(id));
  }

  void release(int64_t id) {
    cache_->release(id);
    held_.erase(id);
  }

  // Others take all that is left, block by block, or give it back.
  void hoard() {
    for (const int64_t id : hoarded_) cache_->release(id);
    if (!hoarded_.empty()) return hoarded_.clear();
    for (int misses = 0; misses < layers();) {
      hoarded_.push_back(cache_->new_sequence());
      misses = 0;
      for (int layer = 0; layer < layers(); ++layer) {
        try {
          cache_->append(hoarded_.back(), layer, rows(layer), rows(layer), 1);
        } catch (const kvasir::Error& error) {
          REQUIRE_MESSAGE(error.code() == ErrorCode::kBudgetExceeded, error.what());
          ++misses;
        }
      }
    }
  }

  void save_or_restore() {
    if (saved_.state.empty() || random_.chance(0.3)) {
      const int64_t id = any();
      saved_ = support::save(*cache_, id);
      saved_model_ = held_.at(id);
      saved_model_.end_promise();
      return;
    }
    int64_t id = 0;
    if (permitted(false, [&] { id = support::restore(*cache_, saved_); })) held_.emplace(id, saved_model_);
  }

  void cut(int64_t id) {
    Layers& model = held_.at(id);
    const bool back = random_.chance(0.3);
    const int64_t length = back ? model.shortest() : random_.below(static_cast<int>(model.longest()) + 2);
    try {
      back ? static_cast<void>(cache_->rollback(id)) : cache_->truncate(id, length);
      model.cut(length);
    } catch (const kvasir::Error& error) {
      REQUIRE_MESSAGE(error.code() == ErrorCode::kInvalidArgument, error.what());  // a sliding window has passed it
    }
  }

  void guess_or_keep(int64_t id) {
    Layers& model = held_.at(id);
    if (!model.even()) {
      if (model.guesses_from >= 0) cut(id);
      return;
    }
    if (model.longest() <= model.guesses_from || model.guesses_from < 0) {
      cache_->guess(id);
      model.guesses_from = model.longest();
      model.end_promise();  // which was for tokens that are sealed
      return;
    }
    std::vector<int> some;
    for (int i = 0; i < model.longest() - model.guesses_from; ++i) {
      if (random_.chance(0.5)) some.push_back(i);
    }
    cache_->keep(id, some.data(), static_cast<int>(some.size()));
    std::fill(model.lengths.begin(), model.lengths.end(), model.guesses_from + static_cast<int64_t>(some.size()));
    model.guesses_from = -1;
    model.end_promise();
  }

  const support::CacheChoice choice_;
  const bool cuts_;
  support::CachePointer cache_;
  support::Random random_;
  std::vector<std::vector<float>> rows_;
  std::map<int64_t, Layers> held_;
  std::vector<int64_t> hoarded_;
  support::Saved saved_;
  Layers saved_model_{0};
  int refused_ = 0;
  int kept_ = 0;  // appends that were promised
};

const std::map<std::string, double> kFallingBits = {{"code_bits", 4}, {"floor_bits", 0.5}};
const std::pair<support::SideChoice, support::SideChoice> kSides[] = {
    {{"uniform", 2, {}}, {"uniform", 4, {}}},
    {{"progressive", 16, {}}, {"progressive", 16, {}}},
    {{"progressive", 16, {}}, {"pattern", 2, {}}},
    {{"tiered", 2, {}}, {"progressive", 16, {}}},
    {{"spectral", 2, kFallingBits}, {"spectral", 2, kFallingBits}}};

}  // namespace

TEST_CASE("promises: random walks keep all of them, and give back all that they took") {
  int refused = 0, kept = 0;
  for (const auto& sides : kSides) {
    const support::SideChoice &keys = sides.first, &values = sides.second;
    for (int round = 0; round < support::repeat(6); ++round) {
      const uint64_t seed = support::seed() + 40 + round;
      CAPTURE(keys.codec);
      CAPTURE(values.codec);
      CAPTURE(seed);
      support::Random random(seed);
      support::LayerChoice layer;
      layer.keys = keys;
      layer.values = values;
      support::CacheChoice choice;
      choice.layers = {layer, layer};
      if (random.chance(0.3)) choice.layers[1].sliding_window = 200;
      if (random.chance(0.3)) choice.layers[1].budget = 50'000 + random.below(100'000);
      if (random.chance(0.3)) choice.layers[0].keys = choice.layers[0].values = {"f16", 16, {}};
      choice.window = random.below(2) * random.below(150);
      choice.sinks = random.below(20);
      choice.budget = 100'000 + random.below(300'000);
      if (random.chance(0.3)) choice.shrink_policy = kvasir::ShrinkPolicy::kLayer;
      PromiseWalk walk(choice, round % 2 == 1, seed);
      for (int i = 0; i < 200; ++i) walk.step();
      walk.end();
      refused += walk.refused();
      kept += walk.kept();
    }
  }
  CHECK(refused >= support::repeat(50));
  CHECK(kept >= support::repeat(150));
}
