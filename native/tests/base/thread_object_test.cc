// Objects of threads: one a purpose, destroyed whole when the thread ends.
#include "base/thread_object.h"

#include <atomic>
#include <thread>
#include <vector>

#include "support/doctest.h"

namespace kvasir {
namespace {

std::atomic<int> alive{0};

// Counts those that live, and knows whether its memory is still its own when it is destroyed.
struct Counted {
  Counted() { ++alive; }
  ~Counted() {
    if (me == this) --alive;
  }
  Counted* me = this;
};

TEST_CASE("thread object: each thread has an object for each purpose, which ends with it") {
  struct One;
  struct Other;
  constexpr int kThreads = 64;
  for (int round = 0; round < 8; ++round) {
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        Counted* const one = &thread_object<One, Counted>();
        Counted* const other = &thread_object<Other, Counted>();
        if (one == other || one != &thread_object<One, Counted>() || other != &thread_object<Other, Counted>()) ++wrong;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(alive == 0);
  }
}

}  // namespace
}  // namespace kvasir
