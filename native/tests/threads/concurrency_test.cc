// Many threads on one cache. The values are checked; the races are for the thread sanitizer to find.
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "base/thread_pool.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/tolerance.h"

namespace {

support::CacheChoice small_cache() {
  support::LayerChoice layer;
  layer.keys = {"uniform", 2, {}};
  layer.values = {"uniform", 4, {}};
  support::CacheChoice choice;
  choice.layers = {layer, layer};
  return choice;
}

void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

// A cache with one sequence, and what attention gives on it.
struct KnownSequence {
  explicit KnownSequence(int tokens)
      : rows(support::half_rows(support::Profile::kNormal, 1, tokens, small_cache().layers[0].row_size())),
        queries(support::float_rows(2, 1, small_cache().layers[0].query_size())),
        output(queries.size()) {
    cache->append(id, 0, rows.data(), rows.data(), tokens);
    cache->attend(0, &id, 1, 1, queries.data(), output.data());
  }

  const support::CachePointer cache = support::make_cache(small_cache());
  const int64_t id = cache->new_sequence();
  const std::vector<float>& rows;
  const std::vector<float> queries;
  std::vector<float> output;
};

// One life of a sequence; returns everything that can be seen of it on the way.
std::vector<float> live(kvasir::Cache& cache, const support::LayerChoice& layer, int seed) {
  std::vector<float> seen;
  const auto rows = support::half_rows(support::Profile::kOutliers, seed, 500, layer.row_size());
  const auto queries = support::float_rows(seed, 2, layer.query_size());
  std::vector<float> output(queries.size());
  const auto look = [&](int64_t id) {
    cache.attend(0, &id, 1, 2, queries.data(), output.data());
    seen.insert(seen.end(), output.begin(), output.end());
    const auto read = support::read_rows(cache, id, 0, layer, kvasir::Side::kKeys, 0, cache.length(id, 0));
    seen.insert(seen.end(), read.begin(), read.end());
  };
  const int64_t id = cache.new_sequence();
  cache.append(id, 0, rows.data(), rows.data(), 300);
  cache.append(id, 1, rows.data(), rows.data(), 10 + seed % 7);
  look(id);
  const int64_t fork = cache.fork(id);
  cache.append(fork, 0, rows.data(), rows.data(), 100);
  cache.truncate(id, 200 + seed % 50);
  look(id);
  cache.release(id);
  look(fork);
  cache.release(fork);
  return seen;
}

}  // namespace

TEST_CASE("threads: many sequences at once, each as if alone") {
  const support::ThreadsGuard guard(3);
  const support::CacheChoice choice = small_cache();
  const support::CachePointer cache = support::make_cache(choice);
  std::vector<std::vector<float>> expected;
  for (int seed = 0; seed < 6; ++seed) expected.push_back(live(*cache, choice.layers[0], seed));
  std::atomic<int> wrong{0};
  run_threads(6, [&](int seed) {
    for (int round = 0; round < support::repeat(40); ++round) {
      const auto seen = live(*cache, choice.layers[0], seed);
      if (seen.size() != expected[seed].size() ||
          std::memcmp(seen.data(), expected[seed].data(), seen.size() * sizeof(float)) != 0) {
        ++wrong;
      }
    }
  });
  CHECK(wrong.load() == 0);
  CHECK(support::stats_of(*cache)->bytes() == 0);
  CHECK(support::stats_of(*cache)->sequences() == 0);
}

TEST_CASE("threads: attends on one sequence overlap, while others fork it and ask for stats") {
  const support::ThreadsGuard guard(2);
  const KnownSequence known(1500);
  std::atomic<int> wrong{0};
  run_threads(6, [&](int thread) {
    for (int round = 0; round < support::repeat(100); ++round) {
      std::vector<float> output(known.queries.size());
      if (thread == 0) {
        if (support::stats_of(*known.cache)->bytes() <= 0) ++wrong;
        continue;
      }
      const int64_t mine = thread == 1 ? known.cache->fork(known.id) : known.id;
      known.cache->attend(0, &mine, 1, 1, known.queries.data(), output.data());
      if (std::memcmp(output.data(), known.output.data(), output.size() * sizeof(float)) != 0) ++wrong;
      if (thread == 1) {
        known.cache->append(mine, 0, known.rows.data(), known.rows.data(), 130);
        known.cache->truncate(mine, 100);
        known.cache->release(mine);
      }
    }
  });
  CHECK(wrong.load() == 0);
}

TEST_CASE("threads: callers attend at once, each on its own thread while the library's are busy") {
  const support::ThreadsGuard guard(3);
  const KnownSequence known(3000);

  // One caller keeps all of the library's threads until the others have their results.
  std::atomic<int> busy{0}, right{0};
  std::atomic<bool> late{false};
  constexpr int kCallers = 4;
  std::thread greedy([&] {
    kvasir::ThreadPool::shared().run(3, [&](int) {
      ++busy;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (right.load() < kCallers && !late.load()) {
        if (std::chrono::steady_clock::now() > limit) late = true;
        std::this_thread::yield();
      }
    });
  });
  while (busy.load() < 3) std::this_thread::yield();
  run_threads(kCallers, [&](int) {
    std::vector<float> output(known.queries.size());
    known.cache->attend(0, &known.id, 1, 1, known.queries.data(), output.data());
    right += std::memcmp(output.data(), known.output.data(), output.size() * sizeof(float)) == 0;
  });
  greedy.join();
  CHECK(right.load() == kCallers);
  CHECK(!late.load());
}

TEST_CASE("threads: a sequence released or appended to during attends") {
  const support::ThreadsGuard guard(2);
  const support::CacheChoice choice = small_cache();
  const support::LayerChoice& layer = choice.layers[0];
  const support::CachePointer cache = support::make_cache(choice);
  const auto rows = support::half_rows(support::Profile::kNormal, 1, 400, layer.row_size());
  const auto queries = support::float_rows(2, 2, layer.query_size());
  for (int round = 0; round < support::repeat(60); ++round) {
    const int64_t victim = cache->new_sequence(), other = cache->new_sequence();
    cache->append(victim, 0, rows.data(), rows.data(), 400);
    cache->append(other, 0, rows.data(), rows.data(), 40);
    std::atomic<int> unexpected{0};
    run_threads(4, [&](int thread) {
      try {
        std::vector<float> output(queries.size());
        for (int i = 0; i < 8; ++i) {
          if (thread == 0) {
            cache->append(other, 0, rows.data(), rows.data(), 60);
          } else if (thread == 1 && i == 4) {
            cache->release(victim);
          } else {
            // Both orders, so that locks taken in the order of the list would knot.
            const int64_t ids[2] = {thread % 2 == 0 ? victim : other, thread % 2 == 0 ? other : victim};
            cache->attend(0, ids, 2, 1, queries.data(), output.data());
          }
        }
      } catch (const kvasir::Error& error) {
        if (error.code() != kvasir::ErrorCode::kUnknownSequence) ++unexpected;
      }
    });
    CHECK(unexpected.load() == 0);
    cache->release(other);
  }
  CHECK(support::stats_of(*cache)->bytes() == 0);
}

TEST_CASE("threads: the number of threads changes under way") {
  const support::ThreadsGuard guard(2);
  const KnownSequence known(3000);
  const std::vector<double> expected(known.output.begin(), known.output.end());
  std::atomic<bool> stop{false};
  std::thread resizer([&] {
    for (int i = 0; !stop.load(); ++i) kvasir::set_threads(1 + i % 4);
  });
  std::atomic<int> wrong{0};
  run_threads(3, [&](int) {
    for (int round = 0; round < support::repeat(60); ++round) {
      std::vector<float> output(known.queries.size());
      known.cache->attend(0, &known.id, 1, 1, known.queries.data(), output.data());
      // Other splits round differently.
      if (reference::nmse(output.data(), expected) > support::between_two(support::kExactNmse)) ++wrong;
    }
  });
  stop = true;
  resizer.join();
  CHECK(wrong.load() == 0);
}
