// Stats: every byte counted, bits per element as the format says, and which backend did the work.
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/formats.h"

TEST_CASE("stats: bits per element of the pages are the format's") {
  for (const support::Format& keys : support::all_formats(64)) {
    if (keys.shape.side != reference::Side::kKeys || keys.page.varies()) continue;  // see tiered_test.cc
    const std::string codec = kvasir::codec_name(keys.codec);
    reference::Options options = keys.options;
    if (options.empty() && codec == "uniform") options = {{"axis", 0.0}, {"group", 128.0}};  // values as keys
    support::LayerChoice layer;
    layer.head_dim = 64;
    layer.keys = {codec, keys.shape.bits, options};
    layer.values = layer.keys;
    support::CacheChoice choice;
    choice.layers = {layer};
    const support::CachePointer cache = support::make_cache(choice);
    const int64_t id = cache->new_sequence();
    const auto rows = support::float_rows(3, 300, layer.row_size());
    cache->append(id, 0, rows.data(), rows.data(), 300);

    const auto values = keys.reference->shape(reference::Side::kValues, keys.shape.bits, 64, options);
    const std::vector<float> zeros(128 * 64);
    const size_t part_bytes =
        keys.reference->encode(keys.shape, zeros.data()).size() + keys.reference->encode(values, zeros.data()).size();
    const support::StatsPointer stats = support::stats_of(*cache);
    CHECK(stats->pages(0) == 2);
    CHECK(stats->page_bytes(0) == static_cast<int64_t>(2 * layer.kv_heads * part_bytes));
    CHECK_MESSAGE(stats->page_bits_per_element(0) == doctest::Approx(8.0 * part_bytes / (2 * 128 * 64)), keys.text);
    // Windows, sinks and reserved capacity make the true figure higher.
    CHECK(stats->bits_per_element(0) >= stats->page_bits_per_element(0) * 256 / 300);
    CHECK(stats->bits_per_element(0) == doctest::Approx(8.0 * stats->bytes() / (2.0 * 300 * layer.row_size())));
    CHECK(stats->bytes() == stats->page_bytes(0) + stats->window_bytes(0) + stats->table_bytes(0));
    CHECK((stats->table_bytes(0) > 0) == (keys.reference->label_bytes > 0));
    CHECK(stats->window_bytes(0) >= 2 * 44 * layer.row_size() * 2);  // 44 tokens of 16 bits, both sides
  }
}

TEST_CASE("stats: tiles are counted for the backend that ran") {
  for (const std::string& backend : support::backend_names()) {
    support::LayerChoice layer;
    layer.head_dim = 64;  // which the fused kernels of every device take
    layer.keys = layer.values = {"uniform", 2, {}};
    support::CacheChoice choice;
    choice.layers = {layer};
    choice.backend = backend;
    const support::CachePointer cache = support::make_cache(choice);
    const int64_t id = cache->new_sequence();
    const auto rows = support::float_rows(3, 400, layer.row_size());
    const auto queries = support::float_rows(5, 1, layer.query_size());
    std::vector<float> output(queries.size());
    cache->append(id, 0, rows.data(), rows.data(), 100);
    cache->attend(0, &id, 1, 1, queries.data(), output.data());
    CHECK(support::stats_of(*cache)->tiles() == 0);  // no page yet
    cache->append(id, 0, rows.data(), rows.data(), 300);
    cache->attend(0, &id, 1, 1, queries.data(), output.data());
    const support::StatsPointer stats = support::stats_of(*cache);
    CHECK(stats->backend() == backend);
    CHECK(stats->tiles() == 3 * layer.kv_heads);
    CHECK(stats->fallback_tiles() == 0);
  }
}

TEST_CASE("stats: the largest use is remembered, and forks count what they share once") {
  support::LayerChoice layer;
  layer.keys = layer.values = {"uniform", 4, {}};
  support::CacheChoice choice;
  choice.layers = {layer, layer};
  const support::CachePointer cache = support::make_cache(choice);
  const auto rows = support::float_rows(3, 512, layer.row_size());
  const int64_t id = cache->new_sequence();
  for (int i = 0; i < 2; ++i) cache->append(id, i, rows.data(), rows.data(), 500);
  const int64_t alone = support::stats_of(*cache)->bytes();
  const int64_t page_bytes = support::stats_of(*cache)->page_bytes(kvasir::kAllLayers);
  const int64_t fork = cache->fork(id);
  const support::StatsPointer both = support::stats_of(*cache);
  CHECK(both->page_bytes(kvasir::kAllLayers) == page_bytes);
  CHECK(both->pages(kvasir::kAllLayers) == 6);
  CHECK(both->window_bytes(kvasir::kAllLayers) == alone - page_bytes);
  CHECK(alone > page_bytes);
  CHECK(both->sequences() == 2);
  cache->release(id);
  cache->release(fork);
  const support::StatsPointer none = support::stats_of(*cache);
  CHECK(none->bytes() == 0);
  CHECK(none->sequences() == 0);
  CHECK(none->bits_per_element(0) == 0.0);
  CHECK(none->peak_bytes() == both->bytes());
}
