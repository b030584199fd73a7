// Truncate at its edges: pages cut open, shared pages, extreme values, sliding windows.
#include <cmath>

#include "reference/half.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/tolerance.h"

using kvasir::Side;

namespace {

support::CacheChoice one_layer(const std::string& codec, int bits) {
  support::LayerChoice layer;
  layer.keys = {codec, bits, {}};
  layer.values = {codec, bits, {}};
  support::CacheChoice choice;
  choice.layers = {layer};
  return choice;
}

std::vector<float> keys_of(kvasir::Cache& cache, int64_t id, const support::LayerChoice& layer) {
  return support::read_rows(cache, id, 0, layer, Side::kKeys, 0, cache.length(id, 0));
}

}  // namespace

TEST_CASE("truncate: cutting a fork leaves the original's pages alone") {
  const support::CacheChoice choice = one_layer("uniform", 2);
  const support::LayerChoice& layer = choice.layers[0];
  const support::CachePointer cache = support::make_cache(choice);
  const auto rows = support::half_rows(support::Profile::kOutliers, 1, 400, layer.row_size());
  const int64_t original = cache->new_sequence();
  cache->append(original, 0, rows.data(), rows.data(), 400);
  const auto before = keys_of(*cache, original, layer);
  const int64_t pages = support::stats_of(*cache)->pages(0);
  const int64_t fork = cache->fork(original);
  CHECK(support::stats_of(*cache)->pages(0) == pages);  // shared
  for (const int64_t length : {383, 300, 256, 255, 128, 127, 1, 0}) {
    cache->truncate(fork, length);
    CHECK(cache->length(fork, 0) == length);
    CHECK(cache->page_count(fork, 0) == length / 128);
    CHECK(keys_of(*cache, original, layer) == before);
  }
  cache->append(fork, 0, rows.data(), rows.data(), 400);
  CHECK(keys_of(*cache, fork, layer) == before);
  CHECK(support::stats_of(*cache)->pages(0) == 2 * pages);
  cache->release(original);
  CHECK(keys_of(*cache, fork, layer) == before);
}

TEST_CASE("truncate: to the length or beyond does nothing; below 0 is refused") {
  const support::CacheChoice choice = one_layer("uniform", 4);
  const support::CachePointer cache = support::make_cache(choice);
  const auto rows = support::float_rows(1, 200, choice.layers[0].row_size());
  const int64_t id = cache->new_sequence();
  cache->truncate(id, 0);
  cache->append(id, 0, rows.data(), rows.data(), 200);
  for (const int64_t length : {int64_t{200}, int64_t{201}, INT64_MAX}) {
    cache->truncate(id, length);
    CHECK(cache->length(id, 0) == 200);
    CHECK(cache->page_count(id, 0) == 1);
  }
  CHECK_THROWS_AS(cache->truncate(id, -1), kvasir::Error);
  CHECK_THROWS_AS(cache->truncate(id, INT64_MIN), kvasir::Error);
  CHECK(cache->length(id, 0) == 200);
}

TEST_CASE("truncate: a reopened page is sealed again to finite values, however large they were") {
  // The range of a group is rounded up, so the decoded maximum may exceed the appended one. It must not come to exceed
  // what a page can hold when the reopened tokens are sealed again next to the most negative value.
  const support::CacheChoice choice = one_layer("uniform", 1);
  const support::LayerChoice& layer = choice.layers[0];
  const int row_size = layer.row_size();
  const support::CachePointer cache = support::make_cache(choice);
  std::vector<float> rows(128 * row_size, 32752.0f);
  for (int c = 0; c < row_size; ++c) rows[127 * row_size + c] = -1.0f;
  for (int t = 0; t < 128; ++t) rows[t * row_size + row_size - 1] = t % 2 == 0 ? -1.0f : 32752.0f;
  const int64_t id = cache->new_sequence();
  cache->append(id, 0, rows.data(), rows.data(), 128);
  cache->truncate(id, 100);
  const std::vector<float> low(128 * row_size, -32752.0f);
  cache->append(id, 0, low.data(), low.data(), 28);
  REQUIRE(cache->page_count(id, 0) == 1);
  int wrong = 0;
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (const float x : support::read_rows(*cache, id, 0, layer, side, 0, 128)) {
      // One bit: each element decodes to about one of the two values of its group.
      wrong += !(std::fabs(x) <= 33000.0f);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("truncate: a sliding-window layer can step back by a page, and refuses what it no longer holds") {
  support::CacheChoice choice = one_layer("uniform", 4);
  choice.layers[0].sliding_window = 200;
  const support::LayerChoice& layer = choice.layers[0];
  const auto rows = support::half_rows(support::Profile::kNormal, 3, 1500, layer.row_size());
  const auto queries = support::float_rows(4, 1, layer.query_size());
  for (const int64_t back : {1, 5, 127, 128}) {
    const support::CachePointer cache = support::make_cache(choice);
    const int64_t id = cache->new_sequence();
    for (int64_t t = 0; t < 1500; t += 50) {
      cache->append(id, 0, rows.data() + t * layer.row_size(), rows.data() + t * layer.row_size(), 50);
    }
    // 1500 tokens are 11 pages; those wholly before 1500 - 200 - 128 - 50 need not be there any more.
    CHECK(cache->page_count(id, 0) < 6);
    CHECK_THROWS_AS(cache->truncate(id, 700), kvasir::Error);
    CHECK(cache->length(id, 0) == 1500);
    cache->truncate(id, 1500 - back);
    CHECK(cache->length(id, 0) == 1500 - back);
    std::vector<float> output(queries.size());
    cache->attend(0, &id, 1, 1, queries.data(), output.data());
    const int64_t first = 1500 - back - 200;
    CHECK(support::output_nmse(*cache, id, 0, layer, queries.data(), 1, output.data(), first) <= support::kExactNmse);
    cache->truncate(id, 0);
    CHECK(cache->length(id, 0) == 0);
    cache->append(id, 0, rows.data(), rows.data(), 300);
    CHECK(cache->page_count(id, 0) == 2);
    CHECK(keys_of(*cache, id, layer).size() == 300u * layer.row_size());
  }
}
