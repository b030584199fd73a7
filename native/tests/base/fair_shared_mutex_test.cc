// The fair shared mutex: readers together, writers alone, and a writer that waits is not passed for ever.
#include "base/fair_shared_mutex.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "support/doctest.h"
#include "support/effort.h"

using kvasir::FairSharedMutex;

TEST_CASE("fair shared mutex: writers exclude each other and readers") {
  FairSharedMutex mutex;
  int value = 0, copy = 0;  // equal whenever nobody writes; not atomic, so that a race is a race
  std::atomic<int> wrong{0};
  const int rounds = support::repeat(3000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < rounds; ++round) {
        if (i < 2) {
          std::unique_lock<FairSharedMutex> lock(mutex);
          ++value;
          copy = value;
        } else {
          std::shared_lock<FairSharedMutex> lock(mutex);
          if (value != copy) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong.load() == 0);
  CHECK(value == 2 * rounds);
}

TEST_CASE("fair shared mutex: readers hold it together") {
  FairSharedMutex mutex;
  mutex.lock_shared();
  std::thread other([&] {
    mutex.lock_shared();  // would wait for ever if readers excluded each other
    mutex.unlock_shared();
  });
  other.join();
  mutex.unlock_shared();
}

TEST_CASE("fair shared mutex: readers that overlap for ever do not keep a writer out") {
  FairSharedMutex mutex;
  std::atomic<bool> written{false}, late{false};
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!written.load()) {
        std::shared_lock<FairSharedMutex> lock(mutex);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));  // at any moment somebody reads
        if (std::chrono::steady_clock::now() > limit) {
          late = true;
          return;
        }
      }
    });
  }
  for (int i = 0; i < 5; ++i) {
    std::unique_lock<FairSharedMutex> lock(mutex);
    std::this_thread::yield();
  }
  written = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(!late.load());
}
