// What the tiered codec spends on choosing: the channels of a page when it is sealed, and the queries of a step.
#pragma once

#include <cstdio>
#include <memory>
#include <vector>

#include "codecs/codec.h"
#include "codecs/tiered/formula.h"
#include "data.h"
#include "options.h"
#include "prompt_bench.h"
#include "report.h"

namespace bench {

// Channel selection as a share of sealing, which is all that an append does to a page of one kv head, both sides; and
// observing a query as a share of a step.
inline void time_choices(const Options& options, const Rows& data, const std::vector<float>& query) {
  constexpr int kTokens = 2048;
  const std::unique_ptr<kvasir::CacheConfig, void (*)(kvasir::CacheConfig*)> config(kvasir::CacheConfig::create(1),
                                                                                    kvasir::CacheConfig::destroy);
  config->set_heads(0, kQueryHeads, kKvHeads, kHeadDim);
  choose_tiers(*config);
  config->set_backend(options.backend.c_str());
  const std::unique_ptr<kvasir::Cache, void (*)(kvasir::Cache*)> cache(kvasir::Cache::create(*config),
                                                                       kvasir::Cache::destroy);
  const std::vector<float> uneven = uneven_query();
  int64_t sequence = 0;
  const double sealing = median_seconds(options, [&] {
    if (sequence != 0) cache->release(sequence);
    sequence = cache->new_sequence();
    cache->observe(0, &sequence, 1, 1, uneven.data());
    cache->append(sequence, 0, data.at(0), data.at(1), kTokens);
  });
  const double part_us = 1e6 * sealing / (kTokens / kvasir::kPageTokens * kKvHeads);

  const kvasir::PageFormat format = kvasir::configure_codec(kvasir::codec_index("tiered"), kvasir::Side::kKeys, 2,
                                                            kHeadDim, {{"mode", 2.0}, {"key_bits", 2.7}});
  std::vector<float> ranges(kHeadDim);
  for (int c = 0; c < kHeadDim; ++c) ranges[c] = 5.0f + data.at(3)[c];
  constexpr int kTimes = 100;
  kvasir::tiered::Tiers tiers;
  const double selecting_us = 1e6 / kTimes * median_seconds(options, [&] {
                                for (int i = 0; i < kTimes; ++i) {
                                  ranges[i] += 1e-3f;
                                  kvasir::tiered::choose_tiers(format, ranges.data(), uneven.data(), tiers);
                                }
                              });
  std::printf("channel selection (%d, %d, %d channels): %.2f us of %.1f us to seal a page of one kv head, %.1f %%\n",
              tiers.n16, tiers.n4, kHeadDim - tiers.n16 - tiers.n4, selecting_us, part_us,
              100 * selecting_us / part_us);

  const double observing_us = 1e6 / kTimes * median_seconds(options, [&] {
                                for (int i = 0; i < kTimes; ++i) cache->observe(0, &sequence, 1, 1, query.data());
                              });
  std::vector<float> output(query.size());
  const double step_us =
      1e6 * median_seconds(options, [&] { cache->attend(0, &sequence, 1, 1, query.data(), output.data()); });
  std::printf("observing queries: %.2f us, beside a step of %.0f us over %d tokens, %.2f %%\n", observing_us, step_us,
              kTokens, 100 * observing_us / step_us);
}

}  // namespace bench
