// What attention gives a sequence does not depend on who is beside it in the call, to the bit: greedy tokens must not.
#include <vector>

#include "kvasir/kvasir.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/every_codec.h"

using support::EveryCodec;

TEST_CASE("attention: a sequence gets the same bits alone and in a batch, at any number of threads") {
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
    for (const int threads : {1, 2, 3}) {
      kvasir::set_threads(threads);
      std::vector<float> together(queries.size()), alone(queries.size());
      cache->attend(0, ids.data(), kCount, 1, queries.data(), together.data());
      for (int i = 0; i < kCount; ++i) {
        cache->attend(0, &ids[i], 1, 1, queries.data() + i * EveryCodec::kQuery, alone.data() + i * EveryCodec::kQuery);
      }
      CHECK_MESSAGE(together == alone, codec, ", ", threads, " threads");
    }
    kvasir::set_threads(2);
  }
}
