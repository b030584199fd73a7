// Memory of closed sequences goes back to the system, wherever it lies among what is still in use.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "support/doctest.h"
#include "support/effort.h"
#include "support/every_codec.h"

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
#endif
