// The thread pool: every task once, nesting, many callers at once, exceptions, and resizing under load.
#include "base/thread_pool.h"

#if !defined(_WIN32)  // which has neither limits of addresses nor default stacks
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kvasir/error.h"
#include "support/doctest.h"
#include "support/effort.h"
#if !defined(_WIN32)
#include "support/narrow_process.h"
#endif

using kvasir::ThreadPool;

namespace {

#if !defined(_WIN32)
// While it lives, no thread can be started: nothing has room for such a stack.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 52);  // more than any process can address
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};
#endif

}  // namespace

#if defined(__linux__)
TEST_CASE("thread pool: a thread that is bound to one core has one") {
  int cores = 0;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) cores = kvasir::usable_cores();
  }).join();
  CHECK(cores == 1);
}
#endif

TEST_CASE("thread pool: each task runs exactly once, whatever the numbers") {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (const int count : {0, 1, 2, 3, 17, 1000}) {
      std::vector<std::atomic<int>> runs(count);
      pool.run(count, [&](int i) { ++runs[i]; });
      int wrong = 0;
      for (const auto& n : runs) wrong += n.load() != 1;
      CHECK_MESSAGE(wrong == 0, threads, " threads, ", count, " tasks");
    }
  }
}

TEST_CASE("thread pool: run returns after the last task has ended, with its writes visible") {
  ThreadPool pool(4);
  for (int round = 0; round < support::repeat(2000); ++round) {
    std::vector<int> plain(9, 0);  // no atomics: a data race here is a missing synchronisation
    pool.run(9, [&](int i) { plain[i] = i + round; });
    int wrong = 0;
    for (int i = 0; i < 9; ++i) wrong += plain[i] != i + round;
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("thread pool: workers do take part") {
  ThreadPool pool(3);
  // Each task waits until another thread has arrived: with the caller alone this would time out.
  std::atomic<int> arrived{0};
  std::atomic<bool> late{false};
  pool.run(2, [&](int) {
    ++arrived;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (arrived.load() < 2) {
      if (std::chrono::steady_clock::now() > limit) {
        late = true;
        return;
      }
      std::this_thread::yield();
    }
  });
  CHECK(!late.load());
}

TEST_CASE("thread pool: one thread means the caller's thread") {
  ThreadPool pool(1);
  const auto self = std::this_thread::get_id();
  int elsewhere = 0;
  pool.run(50, [&](int) { elsewhere += std::this_thread::get_id() != self; });
  CHECK(elsewhere == 0);
}

TEST_CASE("thread pool: tasks may run tasks, three levels deep") {
  ThreadPool pool(4);
  std::atomic<int> leaves{0};
  pool.run(6, [&](int) { pool.run(5, [&](int) { pool.run(4, [&](int) { ++leaves; }); }); });
  CHECK(leaves.load() == 6 * 5 * 4);
}

TEST_CASE("thread pool: many callers share it") {
  ThreadPool pool(3);
  std::atomic<int> total{0};
  std::vector<std::thread> callers;
  const int rounds = support::repeat(200);
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < rounds; ++round) {
        std::atomic<int> mine{0};
        pool.run(caller + 2, [&](int) { ++mine; });
        if (mine.load() == caller + 2) ++total;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(total.load() == 8 * rounds);
}

TEST_CASE("thread pool: a caller is done with its own tasks while all threads are busy with another's") {
  ThreadPool pool(3);
  std::atomic<int> busy{0};
  std::atomic<bool> release{false}, finished{false};
  std::thread first([&] {
    pool.run(3, [&](int) {  // takes the caller and both workers, and keeps them
      ++busy;
      while (!release.load()) std::this_thread::yield();
    });
  });
  while (busy.load() < 3) std::this_thread::yield();
  std::thread second([&] {
    std::atomic<int> mine{0};
    pool.run(20, [&](int) { ++mine; });
    finished = mine.load() == 20;
  });
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!finished.load() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  CHECK(finished.load());
  release = true;
  first.join();
  second.join();
}

TEST_CASE("thread pool: an exception reaches the caller after the tasks that began have ended") {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < support::repeat(100); ++round) {
      std::atomic<int> running{0};
      std::string caught;
      try {
        pool.run(64, [&](int i) {
          ++running;
          if (i == 5) {
            --running;
            throw std::runtime_error("task five");
          }
          std::this_thread::yield();
          --running;
        });
      } catch (const std::runtime_error& error) {
        caught = error.what();
      }
      REQUIRE(caught == "task five");
      REQUIRE(running.load() == 0);
    }
    // The pool is as good as new.
    std::atomic<int> runs{0};
    pool.run(10, [&](int) { ++runs; });
    CHECK(runs.load() == 10);
  }
}

TEST_CASE("thread pool: an exception crosses nested runs") {
  ThreadPool pool(3);
  CHECK_THROWS_AS(pool.run(4,
                           [&](int i) {
                             pool.run(4, [&](int j) {
                               if (i == 2 && j == 3) throw std::out_of_range("inner");
                             });
                           }),
                  std::out_of_range);
}

TEST_CASE("thread pool: after an exception, tasks that had not begun are skipped") {
  ThreadPool pool(1);  // one thread: the order is 0, 1, 2, ...
  int runs = 0;
  CHECK_THROWS(pool.run(100, [&](int i) {
    ++runs;
    if (i == 3) throw std::runtime_error("stop");
  }));
  CHECK(runs == 4);
}

TEST_CASE("thread pool: the size may change while others work") {
  ThreadPool pool(2);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      while (!stop.load()) {
        std::atomic<int> runs{0};
        pool.run(7, [&](int) { ++runs; });
        if (runs.load() != 7) ++wrong;
      }
    });
  }
  for (int round = 0; round < support::repeat(100); ++round) pool.set_threads(1 + round % 5);
  stop = true;
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong.load() == 0);
}

#if !defined(_WIN32)
TEST_CASE("thread pool: where no thread can be started, the size stays, and tasks run on the caller's thread") {
  ThreadPool pool(3);
  {
    const NoThreads limit;
    try {
      pool.set_threads(9);
      FAIL_CHECK("threads of such a size were started");
    } catch (const kvasir::Error& error) {
      CHECK(error.code() == kvasir::ErrorCode::kUnavailable);
      CHECK(error.text().find("not 9") != std::string::npos);
    }
    CHECK(pool.threads() == 3);
    pool.set_threads(1);  // fewer is always possible
    CHECK_THROWS_AS(ThreadPool(2), kvasir::Error);
    std::atomic<int> runs{0};
    pool.run(100, [&](int) { ++runs; });
    CHECK(runs.load() == 100);
  }
  pool.set_threads(4);
  CHECK(pool.threads() == 4);
}

#if !defined(KVASIR_TESTS_SANITIZED)  // they take addresses without end
TEST_CASE("thread pool: where only some threads can be started, those that were are ended, and it works on as before") {
  const int outcome = support::in_narrow_process(size_t{60} << 20, [] {
    ThreadPool pool(2);
    try {
      pool.set_threads(200);
      return 1;
    } catch (const kvasir::Error& error) {
      if (error.code() != kvasir::ErrorCode::kUnavailable) return 2;
    }
    if (pool.threads() != 2) return 3;
    std::atomic<int> runs{0};
    pool.run(100, [&](int) { ++runs; });
    return runs.load() == 100 ? 0 : 4;
  });
  if (outcome == support::kNoLimit) {
    MESSAGE("not tested: limits of addresses are not kept here");
    return;
  }
  CHECK(outcome == 0);
}
#endif
#endif

TEST_CASE("thread pool: work splits over the pool that its caller uses, however deep") {
  kvasir::ThreadPool two(2), three(3);
  CHECK(&kvasir::ThreadPool::current() == &kvasir::ThreadPool::shared());
  {
    const kvasir::ThreadPool::Use outer(two);
    CHECK(&kvasir::ThreadPool::current() == &two);
    std::atomic<int> strangers{0};
    for (int round = 0; round < 50; ++round) {
      three.run(9, [&](int) {
        if (&kvasir::ThreadPool::current() != &three) ++strangers;
        kvasir::ThreadPool::current().run(3, [&](int) {
          if (&kvasir::ThreadPool::current() != &three) ++strangers;
        });
      });
    }
    CHECK(strangers == 0);
    CHECK(&kvasir::ThreadPool::current() == &two);
  }
  CHECK(&kvasir::ThreadPool::current() == &kvasir::ThreadPool::shared());
}

TEST_CASE("thread pool: a pool of one thread leaves all work to its caller") {
  kvasir::ThreadPool one(1);
  const kvasir::ThreadPool::Use use(one);
  std::atomic<int> elsewhere{0};
  const auto here = std::this_thread::get_id();
  one.run(100, [&](int) {
    kvasir::ThreadPool::current().run(4, [&](int) { elsewhere += std::this_thread::get_id() != here; });
  });
  CHECK(elsewhere == 0);
}

#if defined(__linux__)
namespace {

// On a thread with a stack of so many bytes.
void with_stack(size_t bytes, void (*work)()) {
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, bytes);
  pthread_t thread;
  const auto run = [](void* what) -> void* {
    reinterpret_cast<void (*)()>(what)();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &small, run, reinterpret_cast<void*>(work)) == 0);
  pthread_attr_destroy(&small);
  pthread_join(thread, nullptr);
}

// What the largest kernel takes, and more than the small stacks below have.
int use_stack(int i) {
  volatile char page[300 << 10];
  for (size_t at = 0; at < sizeof page; at += 4096) page[at] = static_cast<char>(i);
  return page[0];
}

}  // namespace

TEST_CASE("thread pool: tasks of a caller with a small stack have a large one, and its exceptions") {
  with_stack(128 << 10, [] {
    ThreadPool pool(1);
    int sum = 0;
    pool.run(10, [&](int i) { sum += use_stack(i); });
    CHECK(sum == 45);
    pool.run(1, [&](int) { sum = use_stack(7); });
    CHECK(sum == 7);
    CHECK_THROWS_AS(pool.run(3, [](int) { throw std::runtime_error("a task"); }), std::runtime_error);
    pool.run(2, [&](int) { CHECK(&ThreadPool::current() == &pool); });
    const NoThreads limit;
    CHECK_THROWS_AS(pool.run(1, [&](int) { use_stack(1); }), kvasir::Error);
  });
}
#endif

// A minute of work: done where a high effort asks for it.
TEST_CASE("thread pool: as many tasks as there are numbers for them") {
  if (support::effort() < 10.0) return;
  ThreadPool pool(2);
  std::atomic<int> least{0};
  pool.run(std::numeric_limits<int>::max(), [&](int i) {
    if (i < 0) least = i;
  });
  CHECK(least == 0);
}
