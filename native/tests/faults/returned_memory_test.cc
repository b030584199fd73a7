// Memory of closed sequences goes back to the system, wherever it lies among what is still in use.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/arena.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/every_codec.h"
#include "support/formats.h"

using support::EveryCodec;

namespace {

int64_t resident_bytes() {
  long total = 0, resident = 0;
  std::FILE* statm = std::fopen("/proc/self/statm", "r");
  REQUIRE(statm);
  REQUIRE(std::fscanf(statm, "%ld %ld", &total, &resident) == 2);
  std::fclose(statm);
  return resident * sysconf(_SC_PAGESIZE);
}

// Of malloc, by all threads: what is free stays resident or does not, as earlier tests have taught malloc.
int64_t taken_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

}  // namespace

#if !defined(KVASIR_TESTS_SANITIZED)  // they keep freed memory on purpose
TEST_CASE("returned memory: of many forks, all but one in a hundred closed, next to nothing stays") {
  for (const std::string codec : {"f16", "progressive"}) {
    const auto config = EveryCodec::config(codec);
    config->set_window(400);
    config->set_backend(kvasir::backend_name(kvasir::backend_count() - 1));  // in memory of this machine
    const support::CachePointer cache(kvasir::Cache::create(*config));
    const auto rows = support::half_rows(support::Profile::kNormal, 31, 600, EveryCodec::kRow);
    const int64_t first = cache->new_sequence();
    for (int layer = 0; layer < EveryCodec::kLayers; ++layer)
      cache->append(first, layer, rows.data(), rows.data(), 600);
    const int64_t before = resident_bytes();
    std::vector<int64_t> forks;
    for (int i = 0; i < 1000; ++i) {
      forks.push_back(cache->fork(first));
      // Pages of its own, too.
      for (int layer = 0; layer < EveryCodec::kLayers; ++layer) {
        cache->append(forks.back(), layer, rows.data(), rows.data(), 200);
      }
    }
    const int64_t held = resident_bytes() - before;
    REQUIRE(held > int64_t{100} << 20);
    for (size_t i = 0; i < forks.size(); ++i) {
      if (i % 100 != 99) cache->release(forks[i]);
    }
    const int64_t kept = resident_bytes() - before;
    CHECK_MESSAGE(kept < held / 5, codec, ": ", kept >> 20, " of ", held >> 20, " MiB stay");
  }
}

TEST_CASE("returned memory: a thread keeps no more of a chunk of many queries than of a few") {
  constexpr int kTokens = 512, kGroup = 128, kDim = 32;
  support::LayerChoice layer;
  layer.query_heads = kGroup;
  layer.kv_heads = 1;
  layer.head_dim = kDim;
  layer.values = {"pattern", 2, {}};  // whose states are larger than their outputs
  support::CacheChoice choice;
  choice.layers = {layer};
  choice.backend = support::available_backends().front()->name;
  const support::CachePointer cache = support::make_cache(choice);
  const auto rows = support::half_rows(support::Profile::kNormal, 31, kTokens, kDim);
  const int64_t id = cache->new_sequence();
  cache->append(id, 0, rows.data(), rows.data(), kTokens);
  const auto queries = support::float_rows(7, kTokens, kGroup * kDim);
  std::vector<float> outputs(queries.size());
  std::thread([&] {
    const auto kept_of = [&](int tokens) {
      const int64_t before = taken_bytes();
      cache->attend(0, &id, 1, tokens, queries.data(), outputs.data());
      return taken_bytes() - before;
    };
    kept_of(8);
    const int64_t kept = kept_of(kTokens);
    CHECK_MESSAGE(kept < int64_t{4} << 20, (kept >> 10), " KiB stay");
  }).join();
}

TEST_CASE("returned memory: of small blocks freed in any order, a few pages around each that stays are kept") {
  kvasir::Arena& arena = *kvasir::host_arena();
  support::Random random(support::seed() + 3);
  struct Taken {
    uint8_t* memory;
    size_t bytes;
    uint8_t content;
  };
  const int64_t before = resident_bytes();
  std::vector<Taken> all;
  int64_t bytes = 0;
  for (int i = 0; i < 30000; ++i) {
    const size_t size = i % 2 == 0 ? 4096 : 1 + static_cast<size_t>(random.below(12000));
    all.push_back({arena.take(size, false), size, static_cast<uint8_t>(random.below(256))});
    REQUIRE(reinterpret_cast<uintptr_t>(all.back().memory) % 64 == 0);
    std::memset(all.back().memory, all.back().content, size);
    bytes += static_cast<int64_t>(size);
  }
  const int64_t held = resident_bytes() - before;
  CHECK(held < bytes * 5 / 4);
  for (size_t i = all.size(); i > 1; --i)
    std::swap(all[i - 1], all[static_cast<size_t>(random.below(static_cast<int>(i)))]);
  const size_t stay = 200;
  for (size_t i = stay; i < all.size(); ++i) arena.give_back(all[i].memory, all[i].bytes, false);
  const int64_t kept = resident_bytes() - before;
  const int64_t most = static_cast<int64_t>(stay) * (12000 + (32 << 10)) + (4 << 20);
  CHECK_MESSAGE(kept < most, kept, " of ", held);
  for (size_t i = 0; i < stay; ++i) {
    const Taken& each = all[i];
    CHECK(std::count(each.memory, each.memory + each.bytes, each.content) == static_cast<int64_t>(each.bytes));
    arena.give_back(each.memory, each.bytes, false);
  }
}

TEST_CASE("returned memory: sequences of one token take what statistics say, and books of a few percent") {
  support::LayerChoice layer;
  layer.query_heads = layer.kv_heads = 8;
  layer.head_dim = 128;
  support::CacheChoice choice;
  choice.layers.assign(32, layer);
  choice.window = 128;
  choice.sinks = 4;
  choice.backend = "scalar";
  const support::CachePointer cache = support::make_cache(choice);
  const std::vector<float> row(static_cast<size_t>(layer.row_size()), 1.0f);
  const auto append = [&](int64_t id) {
    for (int i = 0; i < 32; ++i) cache->append(id, i, row.data(), row.data(), 1);
  };
  const int64_t first = cache->new_sequence();
  append(first);
  int64_t before = resident_bytes();
  constexpr int kMany = 50;
  for (int i = 0; i < kMany; ++i) append(cache->new_sequence());
  CHECK(support::stats_of(*cache)->bytes() == (kMany + 1) * int64_t{2} << 20);
  CHECK((resident_bytes() - before) / kMany <= 2200000);
  before = resident_bytes();
  for (int i = 0; i < kMany; ++i) append(cache->fork(first));
  CHECK((resident_bytes() - before) / kMany <= 2200000);
}
#endif
