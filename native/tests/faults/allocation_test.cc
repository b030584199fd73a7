// Memory runs out at every allocation in turn: of making a cache and of each of its verbs, with every codec. Each time
// the call says so, nothing has changed, and the same call succeeds when there is memory again.
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvasir/commvq_training.h"
#include "kvasir/error.h"
#include "support/commvq_scene.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/every_codec.h"
#include "support/failing_memory.h"

using kvasir::Side;
using support::EveryCodec;

namespace {

// Calls on a thread without memory from earlier calls, and with such workers.
enum class Result { kDone, kOutOfMemory, kOther };
Result on_new_threads(int nth, const std::function<void()>& call, bool* failed) {
  kvasir::set_threads(1);
  kvasir::set_threads(2);
  Result result = Result::kDone;
  std::thread([&] {
    const support::FailingMemory memory(nth);
    try {
      call();
    } catch (const std::bad_alloc&) {
      result = Result::kOutOfMemory;
    } catch (const kvasir::Error& error) {
      result = error.code() == kvasir::ErrorCode::kOutOfMemory ? Result::kOutOfMemory : Result::kOther;
    } catch (...) {
      result = Result::kOther;
    }
    *failed = support::FailingMemory::has_failed();
  }).join();
  return result;
}

class Scene {
 public:
  Scene(const std::string& codec, int64_t budget, kvasir::ShrinkPolicy policy = kvasir::ShrinkPolicy::kOldest)
      : codec_(codec), budget_(budget), policy_(policy) {
    ids_.reserve(4);
  }

  int failures() const { return failures_; }
  int64_t shrinks() const { return shrinks_; }

  // Makes the allocations of `call` fail one by one, until it succeeds.
  void step(const char* name, const std::function<void()>& call) {
    constexpr int kMost = 100'000;
    for (int nth = 1; nth < kMost; ++nth) {
      const auto before = images();
      const int64_t bytes = cache_ ? support::stats_of(*cache_)->bytes() : 0;
      bool failed = false;
      const Result result = on_new_threads(nth, call, &failed);
      REQUIRE_MESSAGE(result != Result::kOther, codec_, ", ", name, ", allocation ", nth);
      if (result == Result::kDone) return;
      REQUIRE_MESSAGE(failed, codec_, ", ", name, ": no memory, though it was there");
      ++failures_;
      // What shrank to make room stays so; nothing else may change.
      if (cache_ && support::stats_of(*cache_)->shrinks(kvasir::kAllLayers) != shrinks_) {
        shrinks_ = support::stats_of(*cache_)->shrinks(kvasir::kAllLayers);
        continue;
      }
      REQUIRE_MESSAGE(images() == before, codec_, ", ", name, " has changed something at allocation ", nth);
      if (cache_) REQUIRE(support::stats_of(*cache_)->bytes() == bytes);
    }
    FAIL("no end to the allocations of ", name);
  }

  void run() {
    const auto config = budget_ > 0 ? EveryCodec::shrinking(codec_, budget_) : EveryCodec::config(codec_);
    config->set_shrink_policy(policy_);
    step("create", [&] { cache_.reset(kvasir::Cache::create(*config)); });
    const auto keys = support::half_rows(support::Profile::kOutliers, 21, 600, EveryCodec::kRow);
    const auto values = support::half_rows(support::Profile::kNormal, 22, 600, EveryCodec::kRow);
    const auto queries = support::float_rows(23, 16, EveryCodec::kQuery);
    std::vector<float> outputs(queries.size()), rows(300 * EveryCodec::kRow);
    const auto append = [&](int64_t id, int layer, int first, int tokens) {
      cache_->append(id, layer, keys.data() + first * EveryCodec::kRow, values.data() + first * EveryCodec::kRow,
                     tokens);
    };
    step("new_sequence", [&] { ids_.push_back(cache_->new_sequence()); });
    const int64_t id = ids_[0];
    step("observe", [&] { cache_->observe(0, &id, 1, 4, queries.data()); });
    for (const int layer : {0, 1}) {
      step("append", [&] { append(id, layer, 0, 10); });
      step("append a page", [&] { append(id, layer, 10, 150); });
      step("append a token", [&] { append(id, layer, 160, 1); });
    }
    step("attend", [&] { cache_->attend(0, &id, 1, 3, queries.data(), outputs.data()); });
    step("append pages", [&] { append(id, 0, 161, 300); });
    step("fork", [&] { ids_.push_back(cache_->fork(id)); });
    const int64_t other = ids_.back();
    const int64_t both[2] = {id, other};
    step("append to the fork", [&] { append(other, 1, 161, 200); });
    step("attend with both", [&] { cache_->attend(1, both, 2, 1, queries.data(), outputs.data()); });
    step("truncate", [&] { cache_->truncate(other, 140); });
    step("read", [&] { cache_->read(id, 0, Side::kKeys, 0, 300, rows.data()); });
    step("stats", [&] { support::stats_of(*cache_); });
    if (codec_ == "commvq") step("shift", [&] { cache_->shift(id, 3, 5); });
    step("append once more", [&] { append(id, 0, 461, 139); });
    CHECK(cache_->length(id, 0) == 600);
    CHECK(cache_->length(other, 1) == 140);
    shrinks_ = support::stats_of(*cache_)->shrinks(kvasir::kAllLayers);
    step("release", [&] { cache_->release(other); });
    ids_.pop_back();
    cache_->release(id);
    ids_.clear();
    CHECK(support::stats_of(*cache_)->bytes() == 0);
  }

 private:
  std::vector<std::vector<uint8_t>> images() {
    std::vector<std::vector<uint8_t>> all;
    for (const int64_t id : ids_) all.push_back(support::image_of(*cache_, id));
    return all;
  }

  const std::string codec_;
  const int64_t budget_;
  const kvasir::ShrinkPolicy policy_;
  support::CachePointer cache_;
  std::vector<int64_t> ids_;
  int64_t shrinks_ = 0;
  int failures_ = 0;
};

}  // namespace

TEST_CASE("faults: memory runs out at every allocation in turn, with every codec") {
  const support::ThreadsGuard threads(2);
  for (const std::string& codec : EveryCodec::names()) {
    Scene scene(codec, 0);
    scene.run();
    CHECK(scene.failures() > 100);
  }
}

TEST_CASE("faults: memory runs out while pages shrink") {
  const support::ThreadsGuard threads(2);
  for (const auto policy : {kvasir::ShrinkPolicy::kOldest, kvasir::ShrinkPolicy::kLayer}) {
    for (const auto& [codec, budget] : {std::pair("progressive", 150'000), std::pair("spectral", 90'000)}) {
      Scene scene(codec, budget, policy);
      scene.run();
      CHECK(scene.failures() > 100);
      CHECK(scene.shrinks() > 1);
    }
  }
}

namespace {

// Makes the allocations of training fail one by one, until it succeeds. What a failed step leaves is no training any
// more: steps and reading say so.
template <class Make, class Read>
void train_without_memory(const char* name, const Make& make, const Read& read) {
  constexpr int kMost = 100'000;
  int failures = 0;
  for (int nth = 1; nth < kMost; ++nth) {
    CAPTURE(name);
    CAPTURE(nth);
    const auto trainer = make();
    bool failed = false;
    const Result result = on_new_threads(
        nth,
        [&] {
          while (trainer->step()) {
          }
        },
        &failed);
    REQUIRE(result != Result::kOther);
    if (result == Result::kDone) {
      read(*trainer);
      CHECK(failures > 30);
      return;
    }
    REQUIRE(failed);
    ++failures;
    REQUIRE_THROWS_AS(trainer->step(), kvasir::Error);
    REQUIRE_THROWS_AS(read(*trainer), kvasir::Error);
    trainer->done();
  }
  FAIL("no end to the allocations of ", name);
}

}  // namespace

TEST_CASE("faults: memory runs out at every allocation of training in turn") {
  const support::ThreadsGuard threads(2);
  const auto rows = support::correlated_rows(support::seed(), 1, 64, 64);
  train_without_memory(
      "keys",
      [&] {
        support::KeyTraining training = {2, 32, 2, 16};
        training.steps = 2;
        return training.trainer(rows);
      },
      [](const kvasir::KeyTrainer& trainer) {
        std::vector<float> tables(2 * 2 * 16 * 32);
        trainer.read_tables(tables.data());
        trainer.error(0, trainer.stage(0));
      });
  train_without_memory(
      "values, with an encoder",
      [&] {
        support::Owned<kvasir::ValueTrainer> trainer(kvasir::ValueTrainer::create(64, 16, 16, 1));
        trainer->set_steps(2);
        trainer->set_batch(4);
        trainer->add(rows.data(), 64);
        return trainer;
      },
      [](const kvasir::ValueTrainer& trainer) {
        std::vector<float> scale(64), norm_weight(64), norm_bias(64), first_weight(16 * 64), first_bias(16);
        std::vector<float> second_weight(32 * 16), second_bias(32), table(16 * 64);
        trainer.read(scale.data(), norm_weight.data(), norm_bias.data(), first_weight.data(), first_bias.data(),
                     second_weight.data(), second_bias.data(), table.data());
      });
  train_without_memory(
      "values",
      [&] {
        support::Owned<kvasir::ValueFitter> fitter(kvasir::ValueFitter::create(64, 16));
        fitter->set_steps(3);
        fitter->add(rows.data(), 64);
        return fitter;
      },
      [](const kvasir::ValueFitter& fitter) {
        std::vector<float> table(16 * 64), thresholds(16);
        fitter.read_table(table.data());
        fitter.read_thresholds(thresholds.data());
      });
}
