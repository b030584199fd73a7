// A shared mutex whose writers are not starved: readers that come while a writer waits, wait behind it.
//
// The system's lock may let readers pass waiting writers, so that attends that overlap for ever would keep an append
// out for ever. Here everybody passes a turnstile, and a writer keeps it until it is done.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace kvasir {

class FairSharedMutex {
 public:
  void lock() {
    turnstile_.lock();
    mutex_.lock();
  }
  void unlock() {
    mutex_.unlock();
    turnstile_.unlock();
  }
  void lock_shared() {
    std::lock_guard<std::mutex> pass(turnstile_);
    mutex_.lock_shared();
  }
  void unlock_shared() { mutex_.unlock_shared(); }

 private:
  std::mutex turnstile_;
  std::shared_mutex mutex_;
};

}  // namespace kvasir
