// What a step of a model takes beside the model: a token of each of many sequences appended to 32 layers and attended
// with, in 64 calls; and what of it is the engine's.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "kvasir/kvasir.h"
#include "step_engine.h"

namespace bench {

class StepBench {
 public:
  StepBench(const std::string& backend, int sequences)
      : sequences_(sequences),
        counts_(static_cast<size_t>(sequences), 1),
        rows_(static_cast<size_t>(sequences) * kHeads * kDim, 0.5f),
        queries_(static_cast<size_t>(sequences) * 4 * kHeads * kDim, 0.25f),
        outputs_(queries_.size()),
        cache_(kvasir::Cache::create(*config(backend)), kvasir::Cache::destroy) {
    for (int i = 0; i < sequences; ++i) ids_.push_back(cache_->new_sequence());
  }

  using Config = std::unique_ptr<kvasir::CacheConfig, void (*)(kvasir::CacheConfig*)>;
  static Config config(const std::string& backend) {
    Config config(kvasir::CacheConfig::create(kLayers), kvasir::CacheConfig::destroy);
    config->set_heads(kvasir::kAllLayers, 4 * kHeads, kHeads, kDim);
    for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
      config->set_codec(kvasir::kAllLayers, side, "uniform", 2);
    }
    config->set_backend(backend.c_str());
    return config;
  }
  static constexpr int kSteps = 7;  // two tokens each: within one block of 16-bit rows

  // Microseconds of a step, the median of some: appends one by one, appends in one call a layer, attention.
  struct Times {
    double single, batch, attend;
  };
  Times run() {
    std::vector<double> times[3];
    for (int i = 0; i < kSteps; ++i) {
      times[0].push_back(timed([&](int layer) {
        for (size_t s = 0; s < ids_.size(); ++s) cache_->append(ids_[s], layer, row(s), row(s), 1);
      }));
      times[1].push_back(timed([&](int layer) {
        cache_->append_rows(layer, ids_.data(), counts_.data(), sequences_, {rows_.data()}, {rows_.data()});
      }));
      times[2].push_back(timed(
          [&](int layer) { cache_->attend(layer, ids_.data(), sequences_, 1, queries_.data(), outputs_.data()); }));
    }
    for (auto& each : times) std::sort(each.begin(), each.end());
    return {times[0][kSteps / 2], times[1][kSteps / 2], times[2][kSteps / 2]};
  }

 private:
  static constexpr int kLayers = 32, kHeads = 8, kDim = 128;

  const float* row(size_t sequence) const { return rows_.data() + sequence * kHeads * kDim; }

  template <class Call>
  static double timed(const Call& call) {
    const auto start = std::chrono::steady_clock::now();
    for (int layer = 0; layer < kLayers; ++layer) call(layer);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }

  const int sequences_;
  const std::vector<int64_t> counts_;
  const std::vector<float> rows_, queries_;
  std::vector<float> outputs_;
  std::unique_ptr<kvasir::Cache, void (*)(kvasir::Cache*)> cache_;
  std::vector<int64_t> ids_;
};

// On a device an engine's own time is not that of its verbs: cuda/cache_bench.cu has it there.
inline void print_step_times(const std::string& backend) {
  const bool engine_too = std::string(kvasir::make_engine(backend).engine->name()) != "cuda";
  std::printf(
      "\na step of 32 layers, short sequences, us (calls):  appends one by one   in one call a layer   attention   "
      "append + attend%s\n",
      engine_too ? "   kernels alone: append   attend   both" : "");
  for (const int sequences : {1, 64, 256}) {
    const StepBench::Times times = StepBench(backend, sequences).run();
    std::printf("%4d sequences  %12.0f (%5d)  %12.0f (32)  %12.0f (32)  %12.0f (64)", sequences, times.single,
                32 * sequences, times.batch, times.attend, times.batch + times.attend);
    if (engine_too) {
      const StepEngine::Times own =
          StepEngine(*StepBench::config(backend), backend, sequences, StepBench::kSteps).run(StepBench::kSteps);
      std::printf("  %16.0f %8.0f %8.0f", own.append, own.attend, own.append + own.attend);
    }
    std::printf("\n");
  }
}

}  // namespace bench
