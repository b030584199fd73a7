// What progressive precision costs: the shrink itself next to a copy of memory, and appending under a budget.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "codecs/codec.h"
#include "codecs/uniform/format.h"
#include "data.h"
#include "kernels/kernels.h"
#include "options.h"
#include "report.h"

namespace bench {

using CachePointer = std::unique_ptr<kvasir::Cache, void (*)(kvasir::Cache*)>;
using StatsPointer = std::unique_ptr<kvasir::CacheStats, void (*)(kvasir::CacheStats*)>;

inline StatsPointer stats_of(kvasir::Cache& cache) { return {cache.stats(), kvasir::CacheStats::destroy}; }

inline CachePointer progressive_cache(const Options& options, int bits, int floor, int64_t budget,
                                      kvasir::ShrinkPolicy policy) {
  const std::unique_ptr<kvasir::CacheConfig, void (*)(kvasir::CacheConfig*)> config(kvasir::CacheConfig::create(1),
                                                                                    kvasir::CacheConfig::destroy);
  config->set_heads(0, kQueryHeads, kKvHeads, kHeadDim);
  for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
    config->set_codec(0, side, "progressive", bits);
    config->set_option(0, side, "floor", floor);
  }
  config->set_budget(budget);
  config->set_shrink_policy(policy);
  config->set_backend(options.backend.c_str());
  return {kvasir::Cache::create(*config), kvasir::Cache::destroy};
}

// Bytes that `tokens` tokens take at a width, window included.
inline int64_t bytes_held(const Options& options, int bits, const Rows& data, int tokens) {
  const CachePointer cache = progressive_cache(options, bits, bits, 0, kvasir::ShrinkPolicy::kOldest);
  cache->append(cache->new_sequence(), 0, data.at(0), data.at(1), tokens);
  return stats_of(*cache)->bytes();
}

// Bytes per second of a copy of `bytes` by all threads, each its own part; the best of five.
inline double copy_bandwidth(size_t bytes, int threads) {
  std::vector<char> from(bytes, 1), to(bytes, 2);
  double best = 1e30;
  for (int round = 0; round < 5; ++round) {
    const double start = seconds_now();
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; ++i) {
      const size_t begin = bytes * i / threads, end = bytes * (i + 1) / threads;
      workers.emplace_back([&, begin, end] { std::memcpy(to.data() + begin, from.data() + begin, end - begin); });
    }
    for (std::thread& worker : workers) worker.join();
    best = std::min(best, seconds_now() - start);
  }
  return static_cast<double>(bytes) / best;
}

// Whole pages of random codes, more than processors keep, shrunk in place as the cache does it: part by part, each
// moved up to the one before. One code of every page is checked.
inline void time_shrink(const Options& options, int bits, double copy) {
  constexpr size_t kBytes = size_t{256} << 20;
  const int backend = kvasir::backend_index(options.backend.c_str());
  const int codec = kvasir::codec_index("progressive");
  const auto shrink = kvasir::resolve_codec(backend, codec).kernels.shrink;
  const auto from = kvasir::configure_codec(codec, kvasir::Side::kKeys, bits, kHeadDim, {});
  const auto to = kvasir::configure_codec(codec, kvasir::Side::kKeys, bits / 2, kHeadDim, {});
  const kvasir::uniform::Layout wide = kvasir::uniform::layout_of(from), narrow = kvasir::uniform::layout_of(to);
  constexpr int kParts = 2 * kKvHeads;
  const size_t page_bytes = kParts * from.page_bytes;
  const int pages = static_cast<int>(kBytes / page_bytes);
  const size_t code_bytes = from.page_bytes - wide.plane_offset[0];

  std::vector<uint64_t> memory(static_cast<size_t>(pages) * page_bytes / 8 + 8);
  auto* data = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  std::mt19937_64 generator(1);
  double best = 0.0;
  for (int round = 0; round < 3; ++round) {
    for (uint64_t& word : memory) word = generator();
    std::vector<int> codes;
    const auto last_part = [&](int page, size_t part) { return data + page * page_bytes + (kParts - 1) * part; };
    for (int page = 0; page < pages; ++page) codes.push_back(wide.get(last_part(page, from.page_bytes), 5, 6));
    const double start = seconds_now();
    kvasir::ThreadPool::shared().run(pages, [&](int page) {
      uint8_t* first = data + page * page_bytes;
      for (int part = 0; part < kParts; ++part) {
        shrink(from, to, first + part * from.page_bytes, first + part * to.page_bytes);
      }
    });
    best = std::max(best, static_cast<double>(pages) * kParts * code_bytes / (seconds_now() - start));
    for (int page = 0; page < pages; ++page) {
      const auto levels = static_cast<double>((1 << bits / 2) + 1);
      if (narrow.get(last_part(page, to.page_bytes), 5, 6) != std::lround(codes[page] / levels)) {
        throw std::runtime_error("a code shrank to the wrong one");
      }
    }
  }
  std::printf("shrink %2d -> %d bits: %6.2f GB/s of codes on %d threads, %.2f of a copy (%.2f GB/s)\n", bits, bits / 2,
              best / 1e9, kvasir::threads(), best / copy, copy / 1e9);
}

// The same tokens, a page at a time, without a budget and into one that 2 bits just fit.
inline void time_budget(const Options& options, const Rows& data, int tokens) {
  const int64_t budget = bytes_held(options, 2, data, tokens);
  const auto run = [&](int64_t limit, int64_t* shrinks) {
    const CachePointer cache = progressive_cache(options, 16, 2, limit, kvasir::ShrinkPolicy::kOldest);
    const int64_t sequence = cache->new_sequence();
    const double start = seconds_now();
    for (int t = 0; t < tokens; t += kvasir::kPageTokens) {
      const size_t row = static_cast<size_t>(t) * kRow;
      cache->append(sequence, 0, data.at(0) + row, data.at(1) + row, std::min(kvasir::kPageTokens, tokens - t));
    }
    const double seconds = seconds_now() - start;
    *shrinks = stats_of(*cache)->shrinks(0);
    return seconds;
  };
  std::vector<double> free_runs, tight_runs;
  int64_t none = 0, shrinks = 0;
  for (int round = 0; round < 5; ++round) {
    free_runs.push_back(run(0, &none));
    tight_runs.push_back(run(budget, &shrinks));
  }
  std::printf(
      "append of %d tokens, one layer: %.1f ms without a budget, %.1f ms into one that ends at 2 bits (%lld shrinks): "
      "%.2f times\n",
      tokens, 1e3 * quantile(free_runs, 0.0), 1e3 * quantile(tight_runs, 0.0), static_cast<long long>(shrinks),
      quantile(tight_runs, 0.0) / quantile(free_runs, 0.0));
}

inline void time_progressive(const Options& options, const Rows& data, int context) {
  std::printf("\n");
  const double copy = copy_bandwidth(size_t{256} << 20, kvasir::threads());
  for (const int bits : {16, 8, 4}) time_shrink(options, bits, copy);
  time_budget(options, data, context);
}

}  // namespace bench
