#include "base/thread_pool.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "base/system_memory.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

// How long a thread looks for news before it sleeps: some times what waking one costs, and longer than most pauses
// between two operations of a model. Steps of one token are hundreds of jobs of some tens of microseconds.
constexpr std::chrono::microseconds kPatience{50};

// At least what tasks put on the stack: whole pages of rows, some kernels; and what a JVM guards at the end of one.
// Stacks of callers may be small, or nearly used up by what called, and a process ends where a thread runs off its own.
constexpr size_t kTaskStackBytes = 384 << 10;

// Lets the core know that its thread only looks.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Looks for a while until found(); whether it was.
template <class Found>
bool soon(const Found& found) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  do {
    for (int look = 0; look < 16; ++look) {
      if (found()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < limit);
  return false;
}

}  // namespace

int usable_cores() {
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Lives until the last thread that took part in it has let go.
struct ThreadPool::Job {
  Job(int count, const std::function<void(int)>& task) : count(count), task(task) {}

  const int count;
  const std::function<void(int)>& task;  // valid while unfinished tasks exist: the caller waits for them
  std::atomic<int64_t> next{0};          // passes `count` in the end, once for each thread
  std::atomic<int> finished{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::condition_variable done;
  std::exception_ptr error;

  bool all_finished() const { return finished.load() == count; }

  // Takes tasks until none is left.
  void help() {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      try {
        if (!failed.load()) task(static_cast<int>(i));
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex);
        if (!error) error = std::current_exception();
        failed = true;
      }
      if (finished.fetch_add(1) + 1 == count) {
        std::lock_guard<std::mutex> lock(mutex);
        done.notify_all();
      }
    }
  }
};

namespace {
thread_local ThreadPool* current_pool = nullptr;
}

ThreadPool& ThreadPool::current() { return current_pool ? *current_pool : shared(); }
ThreadPool::Use::Use(ThreadPool& pool) : before_(std::exchange(current_pool, &pool)) {}
ThreadPool::Use::~Use() { current_pool = before_; }

ThreadPool& ThreadPool::shared() {
  // Never destroyed: worker threads must not outlive it at process exit.
  static ThreadPool* const pool = [] {
    auto* all = new ThreadPool(1);
    std::lock_guard<std::mutex> resizing(all->resizing_);
    all->resize(usable_cores() - 1);
    return all;
  }();
  return *pool;
}

ThreadPool::ThreadPool(int threads) { set_threads(threads); }

ThreadPool::~ThreadPool() { resize(0); }

int ThreadPool::threads() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return wanted_ + 1;
}

void ThreadPool::set_threads(int threads) {
  std::lock_guard<std::mutex> resizing(resizing_);
  const int before = this->threads();
  if (resize(threads - 1)) return;
  const int reached = this->threads();
  resize(before - 1);
  throw Error(ErrorCode::kUnavailable, "the system lets this process start " + std::to_string(reached) +
                                           " threads for the pool, not " + std::to_string(threads) +
                                           " (limits of processes, of a container or of memory); it stays at " +
                                           std::to_string(before));
}

bool ThreadPool::resize(int wanted) {
  std::vector<std::thread> leaving;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    leaving.reserve(workers_.size());
    workers_.reserve(static_cast<size_t>(wanted));
    wanted_ = wanted;
    ++news_;
    try {
      for (int worker = static_cast<int>(workers_.size()); worker < wanted; ++worker) {
        workers_.emplace_back([this, worker] { work(worker); });
      }
    } catch (const std::exception&) {  // no thread, or no memory for one
      wanted_ = static_cast<int>(workers_.size());
    }
    while (static_cast<int>(workers_.size()) > wanted_) {
      leaving.push_back(std::move(workers_.back()));
      workers_.pop_back();
    }
  }
  wake_.notify_all();
  for (std::thread& thread : leaving) thread.join();
  return wanted_ == wanted;
}

void ThreadPool::work(int worker) {
  const Use own(*this);
  std::unique_lock<std::mutex> lock(mutex_);
  while (worker < wanted_) {
    if (jobs_.empty()) {
      const uint64_t seen = news_.load();
      lock.unlock();
      const bool found = soon([&] { return news_.load() != seen; });
      lock.lock();
      if (!found && news_.load() == seen) wake_.wait(lock);
      continue;
    }
    const std::shared_ptr<Job> job = jobs_.front();
    if (job->next.load() >= job->count) {
      jobs_.erase(jobs_.begin());
      continue;
    }
    // To the back, so that the next idle thread helps another caller.
    std::rotate(jobs_.begin(), jobs_.begin() + 1, jobs_.end());
    lock.unlock();
    job->help();
    lock.lock();
  }
}

void ThreadPool::run(int count, const std::function<void(int)>& task) {
  if (count <= 0) return;
  if (stack_has(kTaskStackBytes)) return run_here(count, task);
  std::exception_ptr error;
  std::thread roomy;
  try {
    roomy = std::thread([&] {
      try {
        run_here(count, task);
      } catch (...) {
        error = std::current_exception();
      }
    });
  } catch (const std::system_error&) {
    throw Error(ErrorCode::kUnavailable,
                "the stack of this thread has less than " + std::to_string(kTaskStackBytes) +
                    " bytes left, and the system does not let this process start another thread");
  }
  roomy.join();
  if (error) std::rethrow_exception(error);
}

void ThreadPool::run_here(int count, const std::function<void(int)>& task) {
  const Use own(*this);
  if (count == 1) return task(0);
  const auto job = std::make_shared<Job>(count, task);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (wanted_ > 0) {
      jobs_.push_back(job);
      ++news_;
    }
  }
  if (count == 2) {
    wake_.notify_one();
  } else {
    wake_.notify_all();
  }
  job->help();
  if (!soon([&] { return job->all_finished(); })) {
    std::unique_lock<std::mutex> lock(job->mutex);
    job->done.wait(lock, [&] { return job->all_finished(); });
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end());
  }
  // Moved out, so that the last worker to let go of the job does not free what the caller is reading.
  if (job->error) std::rethrow_exception(std::exchange(job->error, nullptr));
}

}  // namespace kvasir
