// Patterns in a cache: mining, growth, forks, cuts, budgets, long generations.
#include <cmath>
#include <map>

#include "kvasir/kvasir.h"
#include "support/effort.h"
#include "support/pattern_scene.h"
#include "support/tolerance.h"

using kvasir::Side;

namespace {

constexpr Side kSides[] = {Side::kKeys, Side::kValues};

std::vector<float> table_of(kvasir::Cache& cache, int64_t id, Side side, const support::LayerChoice& layer) {
  const int64_t size = cache.table_size(id, 0, side);
  std::vector<float> all;
  for (int head = 0; head < layer.kv_heads; ++head) {
    std::vector<float> vectors(static_cast<size_t>(size) * layer.head_dim);
    REQUIRE(cache.read_table(id, 0, side, head, vectors.data(), size) == size);
    all.insert(all.end(), vectors.begin(), vectors.end());
  }
  return all;
}

bool is_prefix(const std::vector<float>& shorter, const std::vector<float>& longer) {
  return shorter.size() <= longer.size() && std::equal(shorter.begin(), shorter.end(), longer.begin());
}

}  // namespace

TEST_CASE("pattern: prompts of any length, cut in any way, on every backend") {
  for (const std::string& backend : support::backend_names()) {
    for (const int prompt : {1, 5, 31, 127, 128, 129, 300, 700}) {
      for (const int sinks : {0, 7}) {
        support::PatternScene scene(support::pattern_layer(48, 2, {}, 2), backend, sinks);
        const int total = prompt + 420;
        const auto keys = support::cluster_rows(3, total, 96, 12, 4.0, 0.01);
        const auto values = support::cluster_rows(4, total, 96, 12, 4.0, 0.01);
        scene.append(keys.data(), values.data(), prompt);
        const int64_t mined = prompt - sinks >= 128 ? 32 : 0;
        CHECK(scene.cache().table_size(scene.id(), 0, Side::kKeys) == mined);
        for (int t = prompt; t < total; ++t) scene.append(&keys[t * 96], &values[t * 96], 1);
        // A prompt below a page is mined when the window seals, from the 128 tokens there are.
        CHECK(scene.fixed() == 32);
        const int64_t first_pages = std::max(1, (prompt - sinks) / 128);
        for (const Side side : kSides) {
          CHECK(scene.cache().table_size(scene.id(), 0, side) == 32 + scene.pages() - first_pages);
        }
        scene.check_pages(Side::kKeys, keys);
        scene.check_pages(Side::kValues, values);
        CHECK_MESSAGE(scene.attention_nmse(5) <= support::kExactNmse, backend, ", prompt ", prompt);
        CHECK_MESSAGE(scene.attention_nmse(6, 40) <= support::kExactNmse, backend, ", prompt ", prompt);
      }
    }
  }
}

TEST_CASE("pattern: as many patterns as asked for, 2..64") {
  const auto rows = support::cluster_rows(3, 128, 64, 12, 4.0);
  for (const int patterns : {2, 3, 16, 32, 33, 64}) {
    support::PatternScene scene(support::pattern_layer(64, 2, {{"patterns", static_cast<double>(patterns)}}));
    scene.append(rows.data(), rows.data(), 128);  // exactly one page
    CHECK(scene.fixed() == patterns);
    scene.check_pages(Side::kKeys, rows);
    scene.check_pages(Side::kValues, rows);
    CHECK(support::stats_of(scene.cache())->table_bytes(0) == 2 * patterns * 64 * 2);
  }
}

TEST_CASE("pattern: mined patterns are the centres of the prompt, sinks and later tokens left out") {
  // Points that k-means cannot miss: 8 clusters without noise, and sinks far away.
  std::vector<float> rows(static_cast<size_t>(400) * 32);
  support::Random random(3);
  std::vector<float> centres(8 * 32);
  for (float& x : centres) x = support::round_to_half(5 * random.normal());
  for (int t = 0; t < 400; ++t) {
    for (int c = 0; c < 32; ++c) rows[t * 32 + c] = t < 4 ? 1000.0f : centres[t % 8 * 32 + c];
  }
  support::PatternScene scene(support::pattern_layer(32, 2, {{"patterns", 8.0}}), "auto", 4);
  scene.append(rows.data(), rows.data(), 400);
  const reference::PatternTable table = scene.table(Side::kKeys);
  CHECK(table.count() == 8);
  for (int k = 0; k < 8; ++k) {
    double nearest = INFINITY;
    for (int v = 0; v < 8; ++v) {
      double distance = 0;
      for (int c = 0; c < 32; ++c) distance += std::pow(table.vectors[v * 32 + c] - centres[k * 32 + c], 2);
      nearest = std::min(nearest, distance);
    }
    CHECK(nearest == 0.0);
  }
  // Each page added later brings half the way between the extremes of its channels.
  const auto more = support::cluster_rows(9, 128 - 12, 32, 5, 2.0);
  std::vector<float> page(rows.end() - 12 * 32, rows.end());
  page.insert(page.end(), more.begin(), more.end());
  scene.append(more.data(), more.data(), 116);
  for (const Side side : kSides) {
    const reference::PatternTable grown = scene.table(side);
    REQUIRE(grown.count() == 9);
    for (int c = 0; c < 32; ++c) {
      float low = page[c], high = page[c];
      for (int t = 1; t < 128; ++t) {
        low = std::min(low, page[t * 32 + c]);
        high = std::max(high, page[t * 32 + c]);
      }
      CHECK(grown.vectors[8 * 32 + c] == support::round_to_half((static_cast<double>(low) + high) / 2));
    }
  }
}

TEST_CASE("pattern: forks share what they have and then go their own ways") {
  const support::LayerChoice layer = support::pattern_layer(32, 2, {}, 2);
  support::PatternScene scene(layer);
  const auto prompt = support::cluster_rows(3, 512, 64, 10, 4.0);
  scene.append(prompt.data(), prompt.data(), 512);
  kvasir::Cache& cache = scene.cache();
  const auto stats = [&] { return support::stats_of(cache); };
  const int64_t mined_bytes = 2 * 2 * 32 * 32 * 2;  // sides, heads, patterns, channels, bytes
  CHECK(stats()->table_bytes(0) == mined_bytes);
  const int64_t fork = cache.fork(scene.id());
  CHECK(stats()->table_bytes(0) == mined_bytes);  // counted once
  const auto shared = table_of(cache, fork, Side::kKeys, layer);
  CHECK(shared == table_of(cache, scene.id(), Side::kKeys, layer));

  const auto left = support::cluster_rows(5, 384, 64, 3, 5.0), right = support::cluster_rows(6, 384, 64, 3, 5.0);
  const auto before = support::read_rows(cache, fork, 0, layer, Side::kKeys, 0, 512);
  cache.append(scene.id(), 0, left.data(), left.data(), 384);
  CHECK(cache.table_size(fork, 0, Side::kKeys) == 32);
  CHECK(support::read_rows(cache, fork, 0, layer, Side::kKeys, 0, 512) == before);
  cache.append(fork, 0, right.data(), right.data(), 384);
  const int64_t added_bytes = 2 * 2 * 3 * 32 * 2;
  CHECK(stats()->table_bytes(0) == mined_bytes + 2 * added_bytes);
  CHECK(cache.table_size(fork, 0, Side::kKeys) == 35);
  CHECK_FALSE(table_of(cache, fork, Side::kKeys, layer) == table_of(cache, scene.id(), Side::kKeys, layer));

  // Each is what it would be alone.
  for (const auto& [id, rest] : {std::pair<int64_t, const std::vector<float>*>{scene.id(), &left}, {fork, &right}}) {
    support::PatternScene alone(layer);
    alone.append(prompt.data(), prompt.data(), 512);
    alone.append(rest->data(), rest->data(), 384);
    for (const Side side : kSides) {
      CHECK(table_of(cache, id, side, layer) == table_of(alone.cache(), alone.id(), side, layer));
      CHECK(support::read_rows(cache, id, 0, layer, side, 0, 896) ==
            support::read_rows(alone.cache(), alone.id(), 0, layer, side, 0, 896));
    }
  }
  cache.release(scene.id());
  CHECK(stats()->table_bytes(0) == mined_bytes + added_bytes);
  cache.release(fork);
  CHECK(stats()->bytes() == 0);
}

TEST_CASE("pattern: a cut takes the patterns of the pages that go, and a cut to nothing all of them") {
  const support::LayerChoice layer = support::pattern_layer(32, 3);
  const auto rows = support::cluster_rows(3, 900, 32, 10, 4.0, 0.02);
  support::PatternScene scene(layer);
  kvasir::Cache& cache = scene.cache();
  scene.append(rows.data(), rows.data(), 300);  // two pages
  for (int t = 300; t < 900; ++t) scene.append(&rows[t * 32], &rows[t * 32], 1);
  const auto full = table_of(cache, scene.id(), Side::kValues, layer);
  CHECK(full.size() == (32 + 5) * 32u);
  const int64_t page_of_bytes = 2 * 32 * 2;
  for (const auto& [cut, vectors] :
       {std::pair<int, int>{896, 37}, {895, 36}, {640, 35}, {500, 33}, {256, 32}, {200, 32}}) {
    const int length = cut;
    const auto kept = support::read_rows(cache, scene.id(), 0, layer, Side::kValues, 0, length);
    cache.truncate(scene.id(), length);
    CHECK_MESSAGE(cache.table_size(scene.id(), 0, Side::kKeys) == vectors, "length ", length);
    CHECK(is_prefix(table_of(cache, scene.id(), Side::kValues, layer), full));
    CHECK(support::stats_of(cache)->table_bytes(0) == vectors * page_of_bytes);
    // Sealed pages read as before; what was reopened is rounded to float16.
    const auto read = support::read_rows(cache, scene.id(), 0, layer, Side::kValues, 0, length);
    int wrong = 0;
    for (int i = 0; i < length * 32; ++i) {
      wrong += read[i] != (i < length / 128 * 128 * 32 ? kept[i] : support::round_to_half(kept[i]));
    }
    CHECK_MESSAGE(wrong == 0, "length ", length);
    CHECK(scene.attention_nmse(7) <= support::kExactNmse);
  }
  // Grown again from one page of the prompt: the page after it adds its centre.
  scene.append(rows.data(), rows.data(), 56);
  CHECK(cache.table_size(scene.id(), 0, Side::kKeys) == 33);
  CHECK(scene.attention_nmse(8) <= support::kExactNmse);

  cache.truncate(scene.id(), 0);
  CHECK(cache.table_size(scene.id(), 0, Side::kKeys) == 0);
  CHECK(support::stats_of(cache)->table_bytes(0) == 0);
  const auto other = support::cluster_rows(99, 400, 32, 6, 4.0);
  cache.append(scene.id(), 0, other.data(), other.data(), 400);
  support::PatternScene fresh(layer);
  fresh.append(other.data(), other.data(), 400);
  for (const Side side : kSides) {
    CHECK(table_of(cache, scene.id(), side, layer) == table_of(fresh.cache(), fresh.id(), side, layer));
    CHECK(support::read_rows(cache, scene.id(), 0, layer, side, 0, 400) ==
          support::read_rows(fresh.cache(), fresh.id(), 0, layer, side, 0, 400));
  }
}

TEST_CASE("pattern: 30,000 decoded tokens stay within one byte of labels and decode right") {
  const int total = support::kSanitized ? 128 * 240 : 30'000;
  support::PatternScene scene(support::pattern_layer(32, 4));
  const auto keys = support::cluster_rows(3, total, 32, 6, 3.0, 0.02);
  const auto values = support::cluster_rows(4, total, 32, 6, 3.0, 0.02);
  std::map<int64_t, std::vector<float>> sealed;  // some pages as they were read when they were new
  for (int t = 0; t < total; ++t) {
    scene.append(&keys[t * 32], &values[t * 32], 1);
    const int64_t page = scene.pages() - 1;
    if (t % 128 == 127 && page % 20 == 0) {
      sealed[page] = support::read_rows(scene.cache(), scene.id(), 0, scene.layer(), Side::kValues, page * 128, 128);
    }
  }
  CHECK(scene.pages() == total / 128);
  CHECK(scene.cache().table_size(scene.id(), 0, Side::kKeys) == 32 + total / 128 - 1);
  // 223 added vectors fit beside 32 mined ones; later pages see the newest of them alone.
  REQUIRE(scene.table(Side::kKeys).added(scene.pages() - 1) > 255 - 32);
  CHECK(scene.check_pages(Side::kKeys, keys) >= 0);
  CHECK(scene.check_pages(Side::kValues, values) > 1000);
  const auto last = scene.page(Side::kValues, scene.pages() - 1);
  int newest = 0;  // data drifts: the last page is best served by what was added last
  for (int t = 0; t < 128; ++t) newest += last[last.size() - 128 + t] > 200;
  CHECK(newest > 64);
  for (const auto& [page, rows] : sealed) {
    CHECK(support::read_rows(scene.cache(), scene.id(), 0, scene.layer(), Side::kValues, page * 128, 128) == rows);
  }
  CHECK(scene.attention_nmse(7) <= support::kExactNmse);
}

TEST_CASE("pattern: attention over pages that refer to many more patterns than were mined") {
  const int total = 128 * 100, d = 64;
  support::PatternScene scene(support::pattern_layer(d, 2));
  const auto keys = support::cluster_rows(5, total, d, 6, 1.0, 0.001);
  const auto values = support::cluster_rows(6, total, d, 6, 3.0, 0.02);
  for (int t = 0; t < total; t += 128) scene.append(&keys[t * d], &values[t * d], 128);
  REQUIRE(scene.table(Side::kValues).added(scene.pages() - 1) == 99);
  CHECK(scene.check_pages(Side::kValues, values) > 1000);
  CHECK(scene.attention_nmse(7) <= support::kExactNmse);
  CHECK(scene.attention_nmse(8, 5) <= support::kExactNmse);
}

TEST_CASE("pattern: tables count in the budget, and running out of it changes nothing") {
  const support::LayerChoice layer = support::pattern_layer(64, 2, {}, 2);
  support::CacheChoice choice;
  choice.layers = {layer};
  const auto rows = support::cluster_rows(3, 700, 128, 10, 4.0);
  const support::CachePointer free_cache = support::make_cache(choice);
  const int64_t free_id = free_cache->new_sequence();
  free_cache->append(free_id, 0, rows.data(), rows.data(), 20);
  const int64_t window_bytes = support::stats_of(*free_cache)->bytes();
  free_cache->append(free_id, 0, &rows[20 * 128], &rows[20 * 128], 280);
  const int64_t needed = support::stats_of(*free_cache)->peak_bytes();
  const int64_t table = support::stats_of(*free_cache)->table_bytes(0);
  CHECK(table == 2 * 2 * 32 * 64 * 2);
  CHECK(needed == support::stats_of(*free_cache)->bytes());
  CHECK(needed - table > window_bytes);
  // Short by one byte, short of the values' table, short of both.
  for (const int64_t missing : {int64_t{1}, table / 2, table / 2 + 1, table}) {
    for (const bool by_layer : {false, true}) {
      (by_layer ? choice.layers[0].budget : choice.budget) = needed - missing;
      (by_layer ? choice.budget : choice.layers[0].budget) = 0;
      const support::CachePointer cache = support::make_cache(choice);
      const int64_t id = cache->new_sequence();
      cache->append(id, 0, rows.data(), rows.data(), 20);
      const auto before = support::read_rows(*cache, id, 0, layer, Side::kKeys, 0, 20);
      try {
        cache->append(id, 0, &rows[20 * 128], &rows[20 * 128], 280);
        FAIL("fitted with ", missing, " bytes missing");
      } catch (const kvasir::Error& error) {
        CHECK(error.code() == kvasir::ErrorCode::kBudgetExceeded);
      }
      const support::StatsPointer stats = support::stats_of(*cache);
      CHECK(stats->bytes() == window_bytes);
      CHECK(stats->table_bytes(0) == 0);
      CHECK(stats->pages(0) == 0);
      CHECK(cache->length(id, 0) == 20);
      CHECK(cache->table_size(id, 0, Side::kKeys) == 0);
      CHECK(support::read_rows(*cache, id, 0, layer, Side::kKeys, 0, 20) == before);
      // What fits goes on working.
      cache->append(id, 0, &rows[20 * 128], &rows[20 * 128], 27);
      CHECK(cache->length(id, 0) == 47);
    }
  }
  choice.budget = support::stats_of(*free_cache)->bytes();
  choice.layers[0].budget = 0;
  const support::CachePointer exact = support::make_cache(choice);
  const int64_t id = exact->new_sequence();
  exact->append(id, 0, rows.data(), rows.data(), 300);
  CHECK(support::stats_of(*exact)->bytes() == choice.budget);
  // The page of a later append would add its centre: refused, and the table is as it was.
  CHECK_THROWS_AS(exact->append(id, 0, rows.data(), rows.data(), 128), kvasir::Error);
  CHECK(exact->table_size(id, 0, Side::kValues) == 32);
  CHECK(support::stats_of(*exact)->bytes() == choice.budget);
}

TEST_CASE("pattern: ablations") {
  const auto rows = support::cluster_rows(3, 1024, 64, 12, 4.0);
  const auto use = [&](const reference::Options& options, Side side, bool without) {
    support::PatternScene scene(support::pattern_layer(64, 2, options));
    scene.append(rows.data(), rows.data(), 512);
    for (int t = 512; t < 1024; ++t) scene.append(&rows[t * 64], &rows[t * 64], 1);
    scene.check_pages(Side::kKeys, rows);
    scene.check_pages(Side::kValues, rows);
    CHECK(scene.attention_nmse(9) <= support::kExactNmse);
    const bool grows = options.count("new_patterns") == 0;
    CHECK(scene.cache().table_size(scene.id(), 0, side) == scene.fixed() + (grows ? 4 : 0));
    const support::StatsPointer stats = support::stats_of(scene.cache());
    return without ? stats->parts_without_table(0, side) : stats->table_use(0, side);
  };
  // With well separated clusters nearly every token has its pattern.
  CHECK(use({}, Side::kKeys, false) > 0.9);
  CHECK(use({}, Side::kValues, false) > 0.9);
  CHECK(use({}, Side::kValues, true) == 0.0);
  CHECK(use({{"new_patterns", 0.0}}, Side::kValues, false) > 0.9);
  CHECK(use({{"metric", 1.0}}, Side::kValues, false) > 0.9);
  CHECK(use({{"accept", 0.0}}, Side::kKeys, true) == 0.0);
  CHECK(use({{"alpha", 0.0}}, Side::kValues, false) >= use({}, Side::kValues, false));
  CHECK(use({{"alpha", 0.0}, {"raw", 0.0}}, Side::kValues, false) == 1.0);
  // Twelve clusters want as many patterns.
  CHECK(use({{"patterns", 64.0}}, Side::kValues, false) > 0.9);
  CHECK(use({{"patterns", 2.0}}, Side::kValues, false) < use({}, Side::kValues, false));
}

TEST_CASE("pattern: stats count the labels there are, shared pages once") {
  support::PatternScene scene(support::pattern_layer(32, 2, {}, 2));
  const auto rows = support::cluster_rows(3, 640, 64, 40, 1.0);
  scene.append(rows.data(), rows.data(), 640);
  for (const Side side : kSides) {
    int labelled = 0, without = 0;
    for (int64_t page = 0; page < 5; ++page) {
      for (int head = 0; head < 2; ++head) {
        const auto bytes = scene.page(side, page, head);
        const auto used = 128 - std::count(bytes.end() - 128, bytes.end(), 0);
        labelled += static_cast<int>(used);
        without += used == 0;
      }
    }
    const int64_t fork = scene.cache().fork(scene.id());
    const support::StatsPointer stats = support::stats_of(scene.cache());
    CHECK(stats->table_use(0, side) == doctest::Approx(labelled / 1280.0));
    CHECK(stats->table_use(kvasir::kAllLayers, side) == doctest::Approx(labelled / 1280.0));
    CHECK(stats->parts_without_table(0, side) == doctest::Approx(without / 10.0));
    scene.cache().release(fork);
  }
}

TEST_CASE("pattern: reading tables") {
  support::PatternScene scene(support::pattern_layer(32, 2, {}, 2));
  kvasir::Cache& cache = scene.cache();
  float out[64 * 32];
  CHECK(cache.table_size(scene.id(), 0, Side::kKeys) == 0);
  CHECK(cache.read_table(scene.id(), 0, Side::kKeys, 0, nullptr, 0) == 0);
  const auto rows = support::cluster_rows(3, 128, 64, 40, 1.0);
  scene.append(rows.data(), rows.data(), 128);
  out[0] = 77.0f;
  CHECK(cache.read_table(scene.id(), 0, Side::kKeys, 0, out, 31) == 32);
  CHECK(out[0] == 77.0f);  // too small: untouched
  CHECK(cache.read_table(scene.id(), 0, Side::kKeys, 1, out, 64) == 32);
  CHECK_THROWS_AS(cache.read_table(scene.id(), 0, Side::kKeys, 2, out, 64), kvasir::Error);
  CHECK_THROWS_AS(cache.read_table(scene.id(), 0, Side::kKeys, -1, out, 64), kvasir::Error);
  CHECK_THROWS_AS(cache.read_table(scene.id(), 1, Side::kKeys, 0, out, 64), kvasir::Error);
  CHECK_THROWS_AS(cache.read_table(scene.id(), 0, Side::kKeys, 0, nullptr, 64), kvasir::Error);
  CHECK_THROWS_AS(cache.read_table(scene.id() + 1, 0, Side::kKeys, 0, out, 64), kvasir::Error);
  CHECK_THROWS_AS(cache.table_size(scene.id(), 0, static_cast<Side>(2)), kvasir::Error);
}
