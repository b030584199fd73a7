// Threads for the CPU work of the library: one pool for all, or one of its own for a cache.
//
// A caller hands in a number of tasks and works on them itself while idle threads join it; it returns when all are
// done. Several callers share the workers fairly enough: each always has its own thread. A task that itself calls run()
// is executed in the same way, so nesting cannot deadlock. Threads that have nothing to do look for work for a moment
// before they sleep: waking them takes longer than many a job.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace kvasir {

// Those that this thread may run on: fewer than the machine has where taskset or a container says so.
int usable_cores();

class ThreadPool {
 public:
  // The library's pool: as many threads as there are cores for the thread that asks first, or as many of them as the
  // system lets it start.
  static ThreadPool& shared();
  // The pool that this thread works for: that of the innermost Use, of the task it is in, or the library's. Whoever has
  // work to split asks it, so that what a cache calls runs on the cache's threads however deep it is.
  static ThreadPool& current();
  class Use {
   public:
    explicit Use(ThreadPool& pool);
    ~Use();
    Use(const Use&) = delete;

   private:
    ThreadPool* const before_;
  };

  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Threads that work for one caller, its own included: those that there are.
  int threads() const;
  // Throws kUnavailable where the system refuses a thread; then there are as many as before.
  void set_threads(int threads);

  // Calls task(0) .. task(count - 1), each once, in any order and on any thread. The first exception of a task is
  // rethrown here after all tasks that began have ended; tasks that had not begun are skipped. Where this thread's
  // stack is too small for tasks, a thread of their own takes its place; throws kUnavailable where there can be none.
  void run(int count, const std::function<void(int)>& task);

 private:
  struct Job;
  // On this thread, whatever its stack.
  void run_here(int count, const std::function<void(int)>& task);
  void work(int worker);
  // Starts or ends workers; true where there are `wanted` now. Where the system refuses one, those started before it
  // stay. With resizing_ held.
  bool resize(int wanted);

  std::mutex resizing_;  // one set_threads at a time
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Job>> jobs_;  // with tasks that nobody has taken yet
  std::atomic<uint64_t> news_{0};           // counts what an idle worker would want to know; changes under mutex_
  std::vector<std::thread> workers_;
  int wanted_ = 0;  // workers that should exist; those with a higher number leave
};

}  // namespace kvasir
