// What attention gives a sequence depends neither on who is beside it in the call nor on the number of threads, to the
// bit: greedy tokens must not.
#include <vector>

#include "kvasir/kvasir.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/every_codec.h"

using support::EveryCodec;

TEST_CASE("attention: a sequence gets the same bits alone and in a batch, and at any number of threads") {
  const int lengths[] = {4096, 1, 700, 2900, 130, 1500};
  constexpr int kCount = 6;
  const auto rows = support::half_rows(support::Profile::kNormal, 71, lengths[0], EveryCodec::kRow);
  const auto queries = support::float_rows(72, kCount, EveryCodec::kQuery);
  for (const char* codec : {"f16", "uniform", "pattern"}) {
    const auto cache = EveryCodec::cache(codec);
    std::vector<int64_t> ids;
    for (const int length : lengths) {
      ids.push_back(cache->new_sequence());
      cache->append(ids.back(), 0, rows.data(), rows.data(), length);
    }
    std::vector<float> first;
    for (const int threads : {1, 2, 3, 8}) {
      const support::ThreadsGuard guard(threads);
      std::vector<float> together(queries.size()), alone(queries.size());
      cache->attend(0, ids.data(), kCount, 1, queries.data(), together.data());
      for (int i = 0; i < kCount; ++i) {
        cache->attend(0, &ids[i], 1, 1, queries.data() + i * EveryCodec::kQuery, alone.data() + i * EveryCodec::kQuery);
      }
      CHECK_MESSAGE(together == alone, codec, ", ", threads, " threads");
      if (first.empty()) first = together;
      CHECK_MESSAGE(together == first, codec, ", ", threads, " threads");
    }
  }
}

TEST_CASE("threads: a cache with threads of its own gives the bits of one that shares the library's") {
  const int lengths[] = {1500, 1, 300};
  const auto rows = support::half_rows(support::Profile::kNormal, 73, lengths[0], EveryCodec::kRow);
  const auto queries = support::float_rows(74, 3, EveryCodec::kQuery);
  for (const std::string& codec : EveryCodec::names()) {
    std::vector<uint8_t> image;
    std::vector<float> outputs;
    for (const int threads : {0, 1, 2, 5}) {
      const auto config = EveryCodec::config(codec);
      config->set_threads(threads);
      const support::CachePointer cache(kvasir::Cache::create(*config));
      std::vector<int64_t> ids;
      for (const int length : lengths) {
        ids.push_back(cache->new_sequence());
        for (int layer = 0; layer < EveryCodec::kLayers; ++layer) {
          cache->append(ids.back(), layer, rows.data(), rows.data(), length);
        }
      }
      std::vector<float> seen(queries.size());
      cache->attend(0, ids.data(), 3, 1, queries.data(), seen.data());
      const auto bytes = support::image_of(*cache, ids[0]);
      if (threads == 0) {
        image = bytes;
        outputs = seen;
      }
      CHECK_MESSAGE(bytes == image, codec, ", ", threads, " threads");
      CHECK_MESSAGE(seen == outputs, codec, ", ", threads, " threads");
    }
  }
}

TEST_CASE("threads: a number that cannot be is refused") {
  const auto config = EveryCodec::config("f16");
  CHECK_THROWS_AS(config->set_threads(-1), kvasir::Error);
  CHECK_THROWS_AS(config->set_threads(1025), kvasir::Error);
}
