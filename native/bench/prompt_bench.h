// What a prompt costs before the first token is decoded: k-means, and sealing all pages of one layer.
#pragma once

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "data.h"
#include "options.h"
#include "report.h"

namespace bench {

constexpr int kPromptTokens = 8192;

// The median of some runs, in seconds.
template <class Work>
double median_seconds(const Options& options, Work work) {
  std::vector<double> samples;
  double total = 0.0;
  while (samples.size() < 3 || (total < options.seconds && samples.size() < 99)) {
    const double start = seconds_now();
    work();
    samples.push_back(seconds_now() - start);
    total += samples.back();
  }
  return quantile(samples, 0.5);
}

// Points without structure, so that no run stops before its ten steps are done.
inline void time_kmeans(const Options& options) {
  constexpr int kClusters = 32, kSteps = 10;
  const Rows data(kPromptTokens, 0);
  std::vector<float> centres(kClusters * kHeadDim);
  const double seconds = median_seconds(options, [&] {
    for (int head = 0; head < kKvHeads; ++head) {
      const float* points = data.at(0) + static_cast<size_t>(head) * kPromptTokens * kHeadDim;
      kvasir::kmeans(points, kPromptTokens, kHeadDim, kClusters, kSteps, 1, centres.data(), nullptr);
    }
  });
  const double bytes = static_cast<double>(kSteps) * kKvHeads * kPromptTokens * kHeadDim * sizeof(float);
  std::printf(
      "\nk-means: %d heads x %d points x %d channels, %d clusters, %d steps: %.1f ms, %.2f GB/s of points in %d "
      "reads\n",
      kKvHeads, kPromptTokens, kHeadDim, kClusters, kSteps, 1e3 * seconds, bytes / seconds / 1e9, kSteps);
}

// One layer's prompt in one append: rounded, mined where the codec does that, matched, quantised and stored.
inline void time_prompt(const Options& options, const std::string& codec, int bits, const Rows& data) {
  const std::unique_ptr<kvasir::CacheConfig, void (*)(kvasir::CacheConfig*)> config(kvasir::CacheConfig::create(1),
                                                                                    kvasir::CacheConfig::destroy);
  config->set_heads(0, kQueryHeads, kKvHeads, kHeadDim);
  for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
    config->set_codec(0, side, codec.c_str(), bits);
  }
  config->set_backend(options.backend.c_str());
  const std::unique_ptr<kvasir::Cache, void (*)(kvasir::Cache*)> cache(kvasir::Cache::create(*config),
                                                                       kvasir::Cache::destroy);
  const double seconds = median_seconds(options, [&] {
    const int64_t sequence = cache->new_sequence();
    cache->append(sequence, 0, data.at(0), data.at(1), kPromptTokens);
    cache->release(sequence);
  });
  const double bytes = 2.0 * kPromptTokens * kRow * sizeof(float);
  std::printf("prompt of %d tokens sealed, one layer, %s-%d: %.1f ms, %.2f GB/s of float32 input\n", kPromptTokens,
              codec.c_str(), bits, 1e3 * seconds, bytes / seconds / 1e9);
}

}  // namespace bench
