// Steps that are all or nothing over layers: what reserve promises, and what rollback makes of a step that broke off.
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/errors.h"
#include "support/failing_memory.h"
#include "support/saved.h"

namespace {

using kvasir::ErrorCode;
using kvasir::Side;

struct Scene {
  support::CacheChoice choice;
  support::CachePointer cache;

  explicit Scene(support::CacheChoice wanted) : choice(std::move(wanted)), cache(support::make_cache(choice)) {}
  int layers() const { return static_cast<int>(choice.layers.size()); }
  int64_t bytes() const { return support::stats_of(*cache)->bytes(); }

  void append(int64_t id, int layer, int tokens, uint64_t seed) {
    const int width = choice.layers[static_cast<size_t>(layer)].row_size();
    const auto rows = support::make_half_rows(support::Profile::kOutliers, seed + layer, tokens, width);
    cache->append(id, layer, rows.data(), rows.data(), tokens);
  }
  void append_all(int64_t id, int tokens, uint64_t seed) {
    for (int layer = 0; layer < layers(); ++layer) append(id, layer, tokens, seed);
  }
  // Takes what is left, block by block.
  void fill_up() {
    for (int misses = 0; misses < layers();) {
      const int64_t id = cache->new_sequence();
      misses = 0;
      for (int layer = 0; layer < layers(); ++layer) {
        try {
          append(id, layer, 1, 3);
        } catch (const kvasir::Error& error) {
          CHECK(error.code() == ErrorCode::kBudgetExceeded);
          ++misses;
        }
      }
    }
  }
  std::vector<float> rows(int64_t id, int layer) const {
    return support::read_rows(*cache, id, layer, choice.layers[static_cast<size_t>(layer)], Side::kKeys, 0,
                              cache->length(id, layer));
  }
};

support::CacheChoice cache_of(const support::SideChoice& keys, const support::SideChoice& values, int window,
                              int sinks) {
  support::LayerChoice layer;
  layer.keys = keys;
  layer.values = values;
  support::CacheChoice choice;
  choice.layers = {layer, layer};
  choice.window = window;
  choice.sinks = sinks;
  return choice;
}

const std::map<std::string, double> kFallingBits = {{"code_bits", 4}, {"floor_bits", 0.5}};
const std::pair<support::SideChoice, support::SideChoice> kSides[] = {
    {{"f16", 16, {}}, {"f16", 16, {}}},
    {{"uniform", 2, {}}, {"uniform", 4, {}}},
    {{"pattern", 2, {}}, {"pattern", 2, {}}},
    {{"tiered", 2, {}}, {"uniform", 2, {}}},
    {{"progressive", 16, {}}, {"uniform", 2, {}}},
    {{"progressive", 16, {}}, {"pattern", 2, {}}},
    {{"spectral", 2, kFallingBits}, {"spectral", 2, kFallingBits}}};

}  // namespace

TEST_CASE("steps: what is reserved is there, whatever others take and however tokens are cut into calls") {
  support::Random random(support::seed() + 31);
  int granted = 0, refused = 0;
  for (const auto& [keys, values] : kSides) {
    const std::string codec = keys.codec;
    for (int round = 0; round < support::repeat(60); ++round) {
      support::CacheChoice choice = cache_of(keys, values, random.below(2) * random.below(200), random.below(20));
      choice.budget = 60'000 + random.below(400'000);
      if (random.below(3) == 0) choice.shrink_policy = kvasir::ShrinkPolicy::kLayer;
      Scene scene(choice);
      const int64_t id = scene.cache->new_sequence();
      const int before = random.below(400), tokens = 1 + random.below(random.below(3) == 0 ? 4000 : 20);
      try {
        if (before > 0) scene.append_all(id, before, 100 + round);
        if (random.below(2) == 0) scene.cache->fork(id);
      } catch (const kvasir::Error&) {
        continue;
      }
      const int64_t bytes = scene.bytes();
      const auto held = before > 0 ? scene.rows(id, 1) : std::vector<float>();
      try {
        scene.cache->reserve(id, tokens);
      } catch (const kvasir::Error& error) {
        REQUIRE(error.code() == ErrorCode::kBudgetExceeded);
        CHECK(scene.bytes() == bytes);
        CHECK(scene.cache->length(id, 0) == before);
        if (before > 0) CHECK(scene.rows(id, 1) == held);
        ++refused;
        continue;
      }
      ++granted;
      scene.fill_up();
      for (int layer = 0; layer < 2; ++layer) {
        for (int done = 0; done < tokens;) {
          const int some = layer == 0 ? 1 : 1 + random.below(tokens - done);
          REQUIRE_NOTHROW_MESSAGE(scene.append(id, layer, some, 1000 + done), codec, ": ", before, " and ", done,
                                  " of ", tokens, " tokens, window ", choice.window, ", sinks ", choice.sinks);
          done += some;
          if (random.below(100) == 0) scene.fill_up();  // with what pages gave up
        }
        CHECK(scene.cache->length(id, layer) == before + tokens);
      }
      CHECK(support::stats_of(*scene.cache)->peak_bytes() <= choice.budget);
    }
  }
  CHECK(granted >= support::repeat(60));
  CHECK(refused >= support::repeat(20));
}

TEST_CASE("steps: wide pages give back what they took of what is reserved, and keep nothing that others may have") {
  for (const auto& sides : kSides) {
    const support::SideChoice &keys = sides.first, &values = sides.second;
    for (const int sliding : {0, 300}) {
      for (const int tokens : {20, 2500}) {
        CAPTURE(keys.codec);
        CAPTURE(values.codec);
        CAPTURE(sliding);
        CAPTURE(tokens);
        support::CacheChoice choice = cache_of(keys, values, 0, 0);
        for (support::LayerChoice& layer : choice.layers) layer.sliding_window = sliding;
        Scene probe(choice);
        const int64_t first = probe.cache->new_sequence();
        probe.append_all(first, 120, 1);
        probe.cache->reserve(first, tokens);
        const int64_t reserved = probe.bytes();
        const int64_t other = probe.cache->new_sequence();
        probe.append_all(other, 1, 2);
        choice.budget = probe.bytes();
        const int64_t spare = choice.budget - reserved;
        probe.append_all(other, 150, 3);
        const support::Saved saved = support::save(*probe.cache, other);

        Scene scene(choice);
        const int64_t id = scene.cache->new_sequence();
        scene.append_all(id, 120, 1);
        scene.cache->reserve(id, tokens);
        CHECK(scene.bytes() == reserved);
        const auto anyone_may_have_it = [&] {
          const int64_t one = scene.cache->new_sequence();
          CHECK_NOTHROW(scene.append_all(one, 1, 3));
          scene.cache->release(one);
        };
        bool restored = false;
        for (int done = 0; done < tokens; done += 10) {
          for (int layer = 0; layer < 2; ++layer) REQUIRE_NOTHROW(scene.append(id, layer, 10, 1000 + done));
          if (!restored) anyone_may_have_it();
          try {
            support::restore(*scene.cache, saved);
            restored = true;
          } catch (const kvasir::Error& error) {
            REQUIRE(error.code() == ErrorCode::kBudgetExceeded);
          }
        }
        const auto stats = support::stats_of(*scene.cache);
        CHECK(stats->peak_bytes() <= choice.budget);
        CHECK(spare > 0);
      }
    }
  }
}

TEST_CASE("steps: what wide pages took of what is reserved is no one else's, whoever asks at whatever moment") {
  for (int round = 0; round < support::repeat(4); ++round) {
    const bool one_layer = round % 2 == 1;  // has a budget
    support::CacheChoice choice = cache_of({"progressive", 16, {}}, {"progressive", 16, {}}, 20, 4);
    Scene probe(choice);
    const int64_t first = probe.cache->new_sequence();
    probe.cache->reserve(first, 4000);
    (one_layer ? choice.layers[1].budget : choice.budget) = probe.bytes() / (one_layer ? 2 : 1) + 200'000;
    Scene scene(choice);
    const int64_t id = scene.cache->new_sequence();
    scene.cache->reserve(id, 4000);
    const int64_t other = probe.cache->new_sequence();
    probe.append_all(other, 500, 7);
    const support::Saved saved = support::save(*probe.cache, other);

    std::atomic<bool> done{false};
    std::atomic<int> taken{0}, refused{0};
    std::vector<std::thread> others;
    for (int thread = 0; thread < 3; ++thread) {
      others.emplace_back([&, thread] {
        support::Random random(support::seed() + 10 * round + thread);
        std::vector<int64_t> held;
        while (!done) {
          try {
            if (thread == 0 && random.below(4) == 0) {
              held.push_back(support::restore(*scene.cache, saved));
            } else {
              held.push_back(scene.cache->new_sequence());
              scene.append_all(held.back(), 1 + random.below(300), 3);
            }
            ++taken;
          } catch (const kvasir::Error& error) {
            CHECK(error.code() == ErrorCode::kBudgetExceeded);
            ++refused;
          }
          while (!held.empty() && random.below(3) == 0) {
            scene.cache->release(held.back());
            held.pop_back();
          }
        }
      });
    }
    support::Random random(support::seed() + 100 + round);
    for (int appended = 0; appended < 4000;) {
      const int some = std::min(4000 - appended, 1 + random.below(60));
      for (int layer = 0; layer < 2; ++layer) CHECK_NOTHROW(scene.append(id, layer, some, 1000 + appended));
      appended += some;
    }
    done = true;
    for (std::thread& thread : others) thread.join();
    CHECK(scene.cache->length(id, 1) == 4000);
    const auto stats = support::stats_of(*scene.cache);
    if (!one_layer) CHECK(stats->peak_bytes() <= choice.budget);
    CHECK(stats->shrinks(kvasir::kAllLayers) > 0);
    CHECK(taken > 0);
    CHECK(refused > 0);
  }
}

TEST_CASE("steps: what one sequence has lent narrows no pages of others while there is room") {
  constexpr int64_t kAmple = 1 << 28;
  for (const auto& sides : kSides) {
    const support::SideChoice &keys = sides.first, &values = sides.second;
    for (const auto& budgets : {std::pair<int64_t, int64_t>(0, 0), {kAmple, 0}, {0, kAmple}}) {
      const int64_t budget = budgets.first, layer_budget = budgets.second;
      CAPTURE(keys.codec);
      CAPTURE(budget);
      CAPTURE(layer_budget);
      support::CacheChoice choice = cache_of(keys, values, 0, 0);
      Scene plain(choice);
      const int64_t lone = plain.cache->new_sequence();
      choice.budget = budget;
      for (support::LayerChoice& layer : choice.layers) layer.budget = layer_budget;
      Scene scene(choice);
      const int64_t lender = scene.cache->new_sequence(), other = scene.cache->new_sequence();
      scene.cache->reserve(lender, 4000);
      for (int i = 0; i < 20; ++i) plain.append_all(lone, 10, i);
      for (const int64_t id : {lender, other}) {
        for (int i = 0; i < 20; ++i) scene.append_all(id, 10, i);
        CHECK(scene.rows(id, 1) == plain.rows(lone, 1));
      }
    }
  }
}

TEST_CASE("steps: pages of what is reserved shrink as others do, and new ones are no narrower than those before") {
  for (const auto policy : {kvasir::ShrinkPolicy::kOldest, kvasir::ShrinkPolicy::kLayer}) {
    for (const int tokens : {10, 128, 300}) {
      CAPTURE(static_cast<int>(policy));
      CAPTURE(tokens);
      support::CacheChoice choice = cache_of({"progressive", 16, {}}, {"progressive", 16, {}}, 0, 0);
      choice.shrink_policy = policy;
      Scene probe(choice);
      probe.cache->reserve(probe.cache->new_sequence(), 6000);
      choice.budget = probe.bytes();
      Scene scene(choice);
      const int64_t id = scene.cache->new_sequence();
      scene.cache->reserve(id, 6000);
      for (int done = 0; done + tokens <= 6000; done += tokens) {
        scene.append_all(id, tokens, done);
        for (int layer = 0; layer < 2; ++layer) {
          std::vector<int64_t> sizes;
          for (int64_t page = 0; page < scene.cache->page_count(id, layer); ++page) {
            sizes.push_back(scene.cache->read_page(id, layer, page, Side::kKeys, 0, nullptr, 0));
          }
          if (sizes.empty()) continue;
          REQUIRE(std::is_sorted(sizes.begin(), sizes.end()));
          REQUIRE(sizes.back() <= (policy == kvasir::ShrinkPolicy::kLayer ? 1 : 2) * sizes.front());
        }
      }
    }
  }
}

TEST_CASE("steps: a wide page leaves what its side table needs of what is reserved") {
  support::CacheChoice choice = cache_of({"progressive", 16, {}}, {"pattern", 2, {}}, 0, 0);
  Scene probe(choice);
  probe.cache->reserve(probe.cache->new_sequence(), 128);
  const int64_t reserved = probe.bytes();
  for (int64_t spare = 0; spare < 20'000; spare += 256) {
    CAPTURE(spare);
    choice.budget = reserved + spare;
    Scene scene(choice);
    const int64_t id = scene.cache->new_sequence();
    scene.cache->reserve(id, 128);
    scene.append_all(id, 127, 1);
    REQUIRE_NOTHROW(scene.append_all(id, 1, 2));
    REQUIRE(scene.cache->page_count(id, 1) == 1);
  }
}

TEST_CASE("steps: appends that run out of memory on the way keep what was reserved") {
  for (const auto& [keys, values] : kSides) {
    const std::string codec = keys.codec;
    support::CacheChoice choice = cache_of(keys, values, 10, 4);
    Scene probe(choice);
    const int64_t first = probe.cache->new_sequence();
    probe.append_all(first, 100, 1);
    probe.cache->reserve(first, 200);
    choice.budget = probe.bytes();
    Scene scene(choice);
    const int64_t id = scene.cache->new_sequence();
    scene.append_all(id, 100, 1);
    scene.cache->reserve(id, 200);
    CHECK(scene.bytes() == choice.budget);
    int failures = 0;
    for (int layer = 0; layer < 2; ++layer) {
      const int width = choice.layers[static_cast<size_t>(layer)].row_size();
      const auto rows = support::make_half_rows(support::Profile::kOutliers, 8, 200, width);
      for (int done = 0; done < 200;) {
        const int some = done == 0 ? 150 : 10;
        for (int nth = 1;; ++nth) {
          try {
            const support::FailingMemory memory(nth);
            scene.cache->append(id, layer, rows.data(), rows.data(), some);
            break;
          } catch (const std::bad_alloc&) {
          } catch (const kvasir::Error& error) {
            REQUIRE_MESSAGE(error.code() == ErrorCode::kOutOfMemory, codec, ": ", error.what());
          }
          ++failures;
          REQUIRE(scene.cache->length(id, layer) == 100 + done);
          scene.fill_up();  // with what the failed append may have given back
          REQUIRE(scene.bytes() <= choice.budget);
        }
        done += some;
      }
    }
    CHECK(failures > 50);
    CHECK(support::stats_of(*scene.cache)->peak_bytes() <= choice.budget);
    for (int64_t taken = 0; taken <= id + 1000; ++taken) {
      try {
        scene.cache->release(taken);
      } catch (const kvasir::Error&) {  // no such sequence
      }
    }
    REQUIRE(scene.bytes() == 0);
    const int64_t next = scene.cache->new_sequence();
    CHECK_NOTHROW_MESSAGE(scene.append_all(next, 100, 1), codec);
    CHECK_NOTHROW_MESSAGE(scene.cache->reserve(next, 200), codec);
  }
}

TEST_CASE("steps: a fork that runs out of memory leaves what was reserved") {
  for (const auto& [keys, values] : kSides) {
    const std::string codec = keys.codec;
    support::CacheChoice choice = cache_of(keys, values, 10, 4);
    const auto make = [&](Scene& scene) {
      const int64_t id = scene.cache->new_sequence();
      scene.append_all(id, 100, 1);
      std::vector<float> queries(static_cast<size_t>(choice.layers[0].query_heads * choice.layers[0].head_dim), 1.0f);
      for (int layer = 0; layer < 2; ++layer) scene.cache->observe(layer, &id, 1, 1, queries.data());
      scene.cache->reserve(id, 200);
      return id;
    };
    Scene probe(choice);
    make(probe);
    choice.budget = probe.bytes();
    Scene scene(choice);
    const int64_t id = make(scene);
    int failures = 0;
    for (int nth = 1;; ++nth, ++failures) {
      try {
        const support::FailingMemory memory(nth);
        const int64_t fork = scene.cache->fork(id);
        scene.cache->release(fork);
        break;
      } catch (const std::bad_alloc&) {
      } catch (const kvasir::Error& error) {
        REQUIRE_MESSAGE(error.code() == ErrorCode::kOutOfMemory, codec, ": ", error.what());
      }
      CHECK(scene.bytes() == choice.budget);
      scene.fill_up();
    }
    CHECK(failures > 3);
    CHECK(scene.bytes() < choice.budget);  // a fork that comes about ends the promise
  }
}

TEST_CASE("steps: what is not used comes back with the last token, a fork, a cut or a reserve of nothing") {
  Scene scene(cache_of({"uniform", 2, {}}, {"uniform", 2, {}}, 0, 0));
  const int64_t id = scene.cache->new_sequence();
  scene.append_all(id, 120, 1);
  const int64_t bytes = scene.bytes();
  const auto reserved = [&] {
    scene.cache->reserve(id, 200);
    CHECK(scene.bytes() > bytes);
  };
  reserved();
  scene.cache->reserve(id, 0);
  CHECK(scene.bytes() == bytes);
  reserved();
  scene.cache->truncate(id, 1000);
  CHECK(scene.bytes() == bytes);
  reserved();
  CHECK(scene.cache->rollback(id) == 120);
  CHECK(scene.bytes() == bytes);
  reserved();
  scene.cache->release(scene.cache->fork(id));
  CHECK(scene.bytes() == bytes);
  reserved();
  for (int i = 0; i < 200; ++i) scene.append_all(id, 1, 2 + i);
  Scene plain(scene.choice);
  const int64_t other = plain.cache->new_sequence();
  plain.append_all(other, 120, 1);
  for (int i = 0; i < 200; ++i) plain.append_all(other, 1, 2 + i);
  CHECK(scene.bytes() == plain.bytes());
  CHECK(scene.rows(id, 1) == plain.rows(other, 1));
  scene.cache->reserve(id, 5);
  scene.cache->release(id);
  CHECK(scene.bytes() == 0);
}

TEST_CASE("steps: pages are paid with the rows that they leave behind: where a token fits, it can be reserved") {
  const std::pair<support::SideChoice, support::SideChoice> sides[] = {{{"uniform", 2, {}}, {"uniform", 4, {}}},
                                                                       {{"f16", 16, {}}, {"f16", 16, {}}}};
  for (const auto& [keys, values] : sides) {
    const std::string codec = keys.codec;
    for (const int window : {0, 16, 40, 130}) {
      CAPTURE(codec);
      CAPTURE(window);
      support::CacheChoice choice = cache_of(keys, values, window, 5);
      Scene probe(choice);
      const int64_t first = probe.cache->new_sequence();
      const int full = 5 + window + 127;
      probe.append_all(first, full, 1);
      choice.budget = probe.bytes();
      Scene scene(choice);
      const int64_t id = scene.cache->new_sequence();
      scene.append_all(id, full, 1);
      REQUIRE(scene.bytes() == choice.budget);
      for (int step = 0; step < 60; ++step) {
        // Where a block begins, the promise has to take one.
        try {
          scene.cache->reserve(id, 1);
        } catch (const kvasir::Error& error) {
          REQUIRE(error.code() == ErrorCode::kBudgetExceeded);
          support::error_of(ErrorCode::kBudgetExceeded, [&] { scene.append(id, 0, 1, 9); });
          CHECK(step > 0);  // not with the page that is sealed now
          break;
        }
        scene.append_all(id, 1, 9 + step);
        CHECK(scene.bytes() <= choice.budget);
      }
      CHECK(scene.cache->page_count(id, 1) == 1);
    }
  }
}

TEST_CASE("steps: a token that fills a page needs no room: the page gives back more than it takes") {
  for (const auto& sides : kSides) {
    const support::SideChoice &keys = sides.first, &values = sides.second;
    for (const int window : {0, 40}) {
      CAPTURE(keys.codec);
      CAPTURE(values.codec);
      CAPTURE(window);
      support::CacheChoice choice = cache_of(keys, values, window, 0);
      Scene probe(choice);
      probe.append_all(probe.cache->new_sequence(), window + 127, 1);
      choice.budget = probe.bytes();
      Scene scene(choice);
      const int64_t id = scene.cache->new_sequence();
      scene.append_all(id, window + 127, 1);
      CHECK_NOTHROW(scene.append_all(id, 1, 2));
    }
  }
}

TEST_CASE("steps: a step that breaks off is rolled back to the bit") {
  for (const auto& [keys, values] : kSides) {
    support::CacheChoice choice = cache_of(keys, values, 30, 3);
    choice.layers.push_back(choice.layers[0]);
    choice.layers[2].budget = 0;
    Scene scene(choice);
    const int64_t id = scene.cache->new_sequence();
    scene.append_all(id, 150, 1);
    std::vector<std::vector<float>> before;
    for (int layer = 0; layer < 3; ++layer) before.push_back(scene.rows(id, layer));
    scene.append(id, 0, 5, 2);
    scene.append(id, 1, 5, 2);
    std::vector<float> bad(static_cast<size_t>(5 * choice.layers[2].row_size()), 1e9f);
    support::error_of(ErrorCode::kNotFinite, [&] { scene.cache->append(id, 2, bad.data(), bad.data(), 5); });
    CHECK(scene.cache->rollback(id) == 150);
    for (int layer = 0; layer < 3; ++layer) {
      CHECK(scene.cache->length(id, layer) == 150);
      CHECK(scene.rows(id, layer) == before[static_cast<size_t>(layer)]);
    }
    CHECK(scene.cache->rollback(id) == 150);
  }
  Scene empty(cache_of({"f16", 16, {}}, {"f16", 16, {}}, 0, 0));
  const int64_t id = empty.cache->new_sequence();
  empty.append(id, 1, 200, 1);
  CHECK(empty.cache->rollback(id) == 0);
  CHECK(empty.bytes() == 0);
}

TEST_CASE("steps: numbers that make no sense") {
  Scene scene(cache_of({"f16", 16, {}}, {"f16", 16, {}}, 0, 0));
  const int64_t id = scene.cache->new_sequence();
  support::error_of(ErrorCode::kInvalidArgument, [&] { scene.cache->reserve(id, -1); });
  support::error_of(ErrorCode::kInvalidArgument, [&] { scene.cache->reserve(id, INT64_MAX); });
  support::error_of(ErrorCode::kUnknownSequence, [&] { scene.cache->reserve(id + 1, 1); });
  support::error_of(ErrorCode::kUnknownSequence, [&] { scene.cache->rollback(id + 1); });
  CHECK(scene.bytes() == 0);
}
