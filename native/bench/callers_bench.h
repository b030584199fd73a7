// Several callers at once, as with several threads of Java: what they get done together, next to one alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "data.h"
#include "options.h"
#include "report.h"

namespace bench {

// Steps per second of `callers` threads that attend one after the other, each beginning at a layer of its own.
inline double steps_per_second(kvasir::Cache& cache, int64_t sequence, int layers, int callers, double seconds,
                               const std::vector<float>& query) {
  std::atomic<bool> stop{false};
  std::vector<int64_t> steps(callers, 0);
  std::vector<std::thread> threads;
  const double start = seconds_now();
  for (int caller = 0; caller < callers; ++caller) {
    threads.emplace_back([&, caller] {
      std::vector<float> output(query.size());
      for (int layer = caller * layers / callers; !stop; layer = (layer + 1) % layers) {
        cache.attend(layer, &sequence, 1, 1, query.data(), output.data());
        ++steps[caller];
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  int64_t total = 0;
  for (const int64_t each : steps) total += each;
  return static_cast<double>(total) / (seconds_now() - start);
}

// A line about it. The library has as many threads as it was set to.
inline std::string time_callers(const Options& options, const std::string& codec, kvasir::Cache& cache,
                                int64_t sequence, int layers, int context, int callers,
                                const std::vector<float>& query) {
  constexpr int kRounds = 3;
  const double seconds = std::max(0.1, options.seconds);
  steps_per_second(cache, sequence, layers, callers, seconds, query);  // warm
  std::vector<double> ratios;                                          // in turn, so that both see the same machine
  for (int round = 0; round < kRounds; ++round) {
    const double alone = steps_per_second(cache, sequence, layers, 1, seconds, query);
    ratios.push_back(steps_per_second(cache, sequence, layers, callers, seconds, query) / alone);
  }
  char line[200];
  std::snprintf(line, sizeof line,
                "%d callers at once, %s at %d tokens, %d threads: %.2f times the steps of one caller (%.2f to %.2f)\n",
                callers, codec.c_str(), context, kvasir::threads(), quantile(ratios, 0.5), quantile(ratios, 0.0),
                quantile(ratios, 1.0));
  return line;
}

}  // namespace bench
