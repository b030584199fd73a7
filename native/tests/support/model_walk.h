// A random walk over a cache and its model: new, append, fork, truncate, release, attend; compared after every step.
//
// Where the cache refuses for its budget, the model is left alone, so the comparison proves that the cache changed
// nothing.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "reference/sequence_model.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/tolerance.h"

namespace support {

class ModelWalk {
 public:
  ModelWalk(const CacheChoice& choice, uint64_t seed)
      : choice_(choice), cache_(make_cache(choice)), seed_(seed), random_(seed) {
    for (const LayerChoice& layer : choice.layers) {
      reference::LayerModel::Format format{layer.kv_heads, layer.head_dim, choice.sinks, choice.window, {}, {}};
      for (int side = 0; side < 2; ++side) {
        const SideChoice& wanted = side == 0 ? layer.keys : layer.values;
        format.codecs[side] = &reference::reference_codec(wanted.codec);
        format.shapes[side] =
            format.codecs[side]->shape(static_cast<reference::Side>(side), wanted.bits, layer.head_dim, wanted.options);
      }
      formats_.push_back(format);
    }
  }

  kvasir::Cache& cache() { return *cache_; }
  int refusals() const { return refusals_; }
  int steps() const { return steps_; }

  void step() {
    ++steps_;
    const std::vector<int64_t> before = bytes_now();
    const int refusals_before = refusals_;
    cut_ = false;
    const int choice = models_.empty() ? 0 : random_.below(20);
    const int64_t id = models_.empty() ? 0 : any_sequence();
    if (choice == 0 && models_.size() < 6) {
      add_sequence();
    } else if (choice <= 2 && models_.size() < 6) {
      fork(id);
    } else if (choice <= 5) {
      truncate(id);
    } else if (choice == 6 && models_.size() > 1) {
      release(id);
    } else if (choice <= 8) {
      attend(id);
    } else {
      append(id);
    }
    const std::vector<int64_t> after = bytes_now();
    if (refusals_ != refusals_before) CHECK_MESSAGE(after == before, text("a refused call kept memory"));
    // Only a cut that reopens a page may pass a budget.
    for (size_t i = 0; i < after.size(); ++i) {
      const int64_t budget = i == 0 ? choice_.budget : choice_.layers[i - 1].budget;
      CHECK_MESSAGE((budget == 0 || after[i] <= budget || after[i] <= before[i] || cut_), text("budget"));
    }
    compare_counts();
    if (models_.count(id) != 0) compare_sequence(id);
  }

  void compare_all() {
    for (const auto& entry : models_) compare_sequence(entry.first);
  }

  void release_all() {
    while (!models_.empty()) release(models_.begin()->first);
    compare_counts();
    const StatsPointer stats = stats_of(*cache_);
    CHECK_MESSAGE(stats->bytes() == 0, text("bytes after the last release"));
  }

 private:
  using Model = std::vector<reference::LayerModel>;

  std::string text(const std::string& what) const {
    std::ostringstream out;
    out << what << "; seed " << seed_ << ", step " << steps_;
    return out.str();
  }

  // Of the cache, then of each layer.
  std::vector<int64_t> bytes_now() {
    const StatsPointer stats = stats_of(*cache_);
    std::vector<int64_t> bytes = {stats->bytes()};
    for (int layer = 0; layer < static_cast<int>(formats_.size()); ++layer) bytes.push_back(stats->layer_bytes(layer));
    return bytes;
  }

  int64_t any_sequence() {
    auto entry = models_.begin();
    std::advance(entry, random_.below(static_cast<int>(models_.size())));
    return entry->first;
  }

  // Runs a call that may be refused for the budget. Any other error fails the test.
  template <class Call>
  bool permitted(Call call) {
    try {
      call();
      return true;
    } catch (const kvasir::Error& error) {
      REQUIRE_MESSAGE(error.code() == kvasir::ErrorCode::kBudgetExceeded, text(error.what()));
      ++refusals_;
      return false;
    }
  }

  void add_sequence() {
    Model model;
    for (const auto& format : formats_) model.emplace_back(&format);
    models_.emplace(cache_->new_sequence(), std::move(model));
  }

  void fork(int64_t id) {
    int64_t copy = 0;
    if (permitted([&] { copy = cache_->fork(id); })) {
      CHECK_MESSAGE(models_.count(copy) == 0, text("fork returned an id in use"));
      models_.emplace(copy, models_.at(id));
      compare_sequence(copy);
    }
  }

  void release(int64_t id) {
    cache_->release(id);
    models_.erase(id);
    CHECK_THROWS_AS(cache_->length(id, 0), kvasir::Error);
  }

  void truncate(int64_t id) {
    int64_t longest = 0;
    for (const auto& layer : models_.at(id)) longest = std::max(longest, layer.length());
    // Half of the cuts are short rollbacks, the others go anywhere, the length itself and beyond included.
    const int64_t back = random_.chance(0.5) ? random_.below(6) : random_.below(static_cast<int>(longest) + 2);
    const int64_t length = std::max<int64_t>(0, longest + 1 - back);
    cut_ = true;
    cache_->truncate(id, length);
    for (auto& layer : models_.at(id)) layer.truncate(length);
  }

  void append(int64_t id) {
    const int layer = random_.below(static_cast<int>(formats_.size()));
    reference::LayerModel& model = models_.at(id)[layer];
    if (model.length() > 1200) return;
    const int tokens = random_.chance(0.5) ? 1 + random_.below(5) : 1 + random_.below(300);
    const Profile profile = random_.chance(0.2) ? Profile::kConstant : Profile::kNormal;
    const auto keys = make_half_rows(profile, random_.next(), tokens, formats_[layer].row_size());
    const auto values = float_rows(random_.next(), tokens, formats_[layer].row_size());
    if (permitted([&] { cache_->append(id, layer, keys.data(), values.data(), tokens); })) {
      model.append(keys.data(), values.data(), tokens);
    }
  }

  void attend(int64_t id) {
    const int layer = random_.below(static_cast<int>(formats_.size()));
    const LayerChoice& choice = choice_.layers[layer];
    const reference::LayerModel& model = models_.at(id)[layer];
    if (model.length() == 0) return;
    const int tokens = 1 + random_.below(static_cast<int>(std::min<int64_t>(3, model.length())));
    const auto queries = float_rows(random_.next(), tokens, choice.query_size());
    std::vector<float> outputs(queries.size());
    cache_->attend(layer, &id, 1, tokens, queries.data(), outputs.data());
    const auto expected = reference::attention(choice.shape(), model.rows(0).data(), model.rows(1).data(), 0,
                                               model.length(), queries.data(), tokens);
    CHECK_MESSAGE(reference::nmse(outputs.data(), expected) <= kExactNmse, text("attention"));
  }

  void compare_sequence(int64_t id) {
    for (int layer = 0; layer < static_cast<int>(formats_.size()); ++layer) {
      const reference::LayerModel& model = models_.at(id)[layer];
      REQUIRE_MESSAGE(cache_->length(id, layer) == model.length(), text("length"));
      REQUIRE_MESSAGE(cache_->page_count(id, layer) == static_cast<int64_t>(model.pages().size()), text("page count"));
      for (int side = 0; side < 2; ++side) {
        const auto rows =
            read_rows(*cache_, id, layer, choice_.layers[layer], static_cast<kvasir::Side>(side), 0, model.length());
        REQUIRE_MESSAGE(rows == model.rows(side), text("rows"));
      }
    }
  }

  // Pages and blocks of 16-bit rows are shared, counted once, and given back with their last holder.
  void compare_counts() {
    const StatsPointer stats = stats_of(*cache_);
    int64_t all_bytes = 0;
    for (int layer = 0; layer < static_cast<int>(formats_.size()); ++layer) {
      std::set<const int*> distinct, blocks;
      for (const auto& entry : models_) {
        for (const auto& page : entry.second[layer].pages()) distinct.insert(page.get());
        for (const auto& block : entry.second[layer].blocks()) blocks.insert(block.get());
      }
      const int64_t block_bytes = int64_t{2} * 2 * reference::LayerModel::kBlockTokens * formats_[layer].row_size();
      REQUIRE_MESSAGE(stats->window_bytes(layer) == static_cast<int64_t>(blocks.size()) * block_bytes,
                      text("distinct blocks"));
      REQUIRE_MESSAGE(stats->pages(layer) == static_cast<int64_t>(distinct.size()), text("distinct pages"));
      all_bytes += stats->layer_bytes(layer);
    }
    CHECK_MESSAGE(stats->sequences() == static_cast<int64_t>(models_.size()), text("sequences"));
    CHECK_MESSAGE(stats->bytes() == all_bytes, text("bytes are the sum over layers"));
  }

  const CacheChoice choice_;
  std::vector<reference::LayerModel::Format> formats_;
  CachePointer cache_;
  const uint64_t seed_;
  Random random_;
  std::map<int64_t, Model> models_;
  int refusals_ = 0;
  int steps_ = 0;
  bool cut_ = false;  // whether the step truncates
};

}  // namespace support
