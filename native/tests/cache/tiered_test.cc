// The tiered codec in a cache: what queries do to pages, sizes that vary, and what it is all for.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "kvasir/error.h"
#include "reference/tiered_page.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/errors.h"
#include "support/model_walk.h"
#include "support/tolerance.h"

namespace {

using kvasir::Side;

constexpr int kHeads = 2, kGroup = 3, kDim = 64;

support::LayerChoice tiered_layer(const reference::Options& options = {}) {
  support::LayerChoice layer;
  layer.kv_heads = kHeads;
  layer.query_heads = kHeads * kGroup;
  layer.head_dim = kDim;
  layer.keys = {"tiered", 2, options};
  layer.values = {"uniform", 2, {{"group", 32.0}}};
  return layer;
}

support::CacheChoice tiered_cache(const reference::Options& options = {}) {
  support::CacheChoice choice;
  choice.layers = {tiered_layer(options)};
  return choice;
}

std::vector<uint8_t> part_of(kvasir::Cache& cache, int64_t id, int64_t page, int head, Side side = Side::kKeys) {
  std::vector<uint8_t> bytes(static_cast<size_t>(cache.read_page(id, 0, page, side, head, nullptr, 0)));
  cache.read_page(id, 0, page, side, head, bytes.data(), static_cast<int64_t>(bytes.size()));
  return bytes;
}

// The part that page `page` of these rows ([tokens][kHeads][kDim]) must have, seen through these query means.
std::vector<uint8_t> expected_part(const std::vector<float>& rows, int64_t page, int head,
                                   const std::vector<double>& means, const reference::Options& options = {}) {
  const auto shape = reference::tiered::shape(reference::Side::kKeys, 2, kDim, options);
  std::vector<float> part, queries(kDim, 1.0f);
  for (int t = 0; t < 128; ++t) {
    const auto row = rows.begin() + ((page * 128 + t) * kHeads + head) * kDim;
    part.insert(part.end(), row, row + kDim);
  }
  for (int c = 0; c < kDim && !means.empty(); ++c) queries[c] = static_cast<float>(means[head * kDim + c]);
  return reference::tiered::encode(shape, part.data(), reference::tiered::choose(shape, part.data(), queries.data()));
}

// Mean magnitudes by kv head and channel of queries [tokens][kHeads * kGroup][kDim].
std::vector<double> means_of(const std::vector<float>& queries) {
  std::vector<double> means(kHeads * kDim, 0.0);
  const int count = static_cast<int>(queries.size()) / (kHeads * kGroup * kDim);
  for (int t = 0; t < count; ++t) {
    for (int h = 0; h < kHeads; ++h) {
      for (int c = 0; c < kDim; ++c) {
        // Sums of a group in float32, then in double: whole multiples of 1/8 are exact in both.
        for (int g = 0; g < kGroup; ++g) {
          means[h * kDim + c] += std::fabs(queries[((t * kHeads + h) * kGroup + g) * kDim + c]);
        }
      }
    }
  }
  for (double& mean : means) mean /= count * kGroup;
  return means;
}

// Queries in multiples of 1/8, of very different size by channel.
std::vector<float> make_queries(uint64_t seed, int tokens) {
  support::Random random(seed);
  std::vector<double> size(kHeads * kDim);
  for (double& s : size) s = std::exp(1.5 * random.normal());
  std::vector<float> queries;
  for (int i = 0; i < tokens * kHeads * kGroup * kDim; ++i) {
    const int head = i / kDim / kGroup % kHeads;
    queries.push_back(static_cast<float>(std::nearbyint(8 * 4 * size[head * kDim + i % kDim] * random.normal()) / 8));
  }
  return queries;
}

void check_pages(kvasir::Cache& cache, int64_t id, const std::vector<float>& rows, int64_t first, int64_t end,
                 const std::vector<double>& means, const char* what) {
  for (int64_t page = first; page < end; ++page) {
    for (int head = 0; head < kHeads; ++head) {
      CHECK_MESSAGE(part_of(cache, id, page, head) == expected_part(rows, page, head, means), what, ", page ", page);
    }
  }
}

}  // namespace

TEST_CASE("tiered: pages see the mean queries of their window") {
  const auto rows = support::make_half_rows(support::Profile::kOutliers, 3, 128 * 8, kHeads * kDim);
  const auto at = [&](int token) { return rows.data() + static_cast<size_t>(token) * kHeads * kDim; };
  const support::CachePointer cache = support::make_cache(tiered_cache());
  const int64_t id = cache->new_sequence();
  const auto append = [&](int64_t sequence, int first, int tokens) {
    cache->append(sequence, 0, at(first), at(first), tokens);
  };
  std::vector<float> output(kHeads * kGroup * kDim * 4);

  append(id, 0, 256);
  check_pages(*cache, id, rows, 0, 2, {}, "no queries yet");

  // Seen by attend, one and several tokens at a time, and by observe: one mean over all.
  auto queries = make_queries(5, 7);
  append(id, 256, 60);
  cache->attend(0, &id, 1, 1, queries.data(), output.data());
  cache->attend(0, &id, 1, 4, queries.data() + kHeads * kGroup * kDim, output.data());
  cache->observe(0, &id, 1, 2, queries.data() + 5 * kHeads * kGroup * kDim);
  append(id, 316, 68);
  const auto first_means = means_of(queries);
  check_pages(*cache, id, rows, 2, 3, first_means, "attended and observed");

  // A window without queries sees those of the one before; a fork does too, and goes its own way.
  append(id, 384, 128);
  check_pages(*cache, id, rows, 3, 4, first_means, "a window without queries");
  const auto second = make_queries(6, 3), third = make_queries(7, 2);
  cache->observe(0, &id, 1, 3, second.data());
  const int64_t fork = cache->fork(id);
  cache->observe(0, &fork, 1, 2, third.data());
  append(id, 512, 128);
  append(fork, 512, 128);
  auto both = second;
  both.insert(both.end(), third.begin(), third.end());
  check_pages(*cache, id, rows, 4, 5, means_of(second), "the original");
  check_pages(*cache, fork, rows, 4, 5, means_of(both), "the fork");

  // What was cut off has been seen.
  const auto fourth = make_queries(8, 2);
  cache->observe(0, &id, 1, 2, fourth.data());
  cache->truncate(id, 512);
  append(id, 512, 128);
  check_pages(*cache, id, rows, 4, 5, means_of(fourth), "after a cut");
}

TEST_CASE("tiered: queries in a batch go to their sequences, a repeated one counts twice") {
  const auto rows = support::make_half_rows(support::Profile::kOutliers, 3, 256, kHeads * kDim);
  const support::CachePointer cache = support::make_cache(tiered_cache());
  const int64_t ids[] = {cache->new_sequence(), cache->new_sequence()};
  for (const int64_t id : ids) cache->append(id, 0, rows.data(), rows.data(), 100);
  const auto queries = make_queries(5, 3);
  const int64_t batch[] = {ids[0], ids[1], ids[0]};
  std::vector<float> output(queries.size());
  cache->attend(0, batch, 3, 1, queries.data(), output.data());
  for (const int64_t id : ids) cache->append(id, 0, rows.data() + 100 * kHeads * kDim, rows.data(), 28);
  const size_t size = queries.size() / 3;
  std::vector<float> first(queries.begin(), queries.begin() + size);
  first.insert(first.end(), queries.begin() + 2 * size, queries.end());
  check_pages(*cache, ids[0], rows, 0, 1, means_of(first), "first and third");
  check_pages(*cache, ids[1], rows, 0, 1, means_of({queries.begin() + size, queries.begin() + 2 * size}), "second");
}

TEST_CASE("tiered: queries that are not finite are refused by observe and passed over by attend") {
  const auto rows = support::make_half_rows(support::Profile::kNormal, 3, 128, kHeads * kDim);
  const support::CachePointer cache = support::make_cache(tiered_cache());
  const int64_t id = cache->new_sequence();
  cache->append(id, 0, rows.data(), rows.data(), 64);
  auto queries = make_queries(5, 2);
  auto bad = queries;
  for (int i = 0; i < 200; i += 3) {
    bad[i] = i % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    queries[i] = 0.0f;
  }
  std::vector<float> output(bad.size());
  CHECK_THROWS_AS(cache->observe(0, &id, 1, 2, bad.data()), kvasir::Error);
  cache->attend(0, &id, 1, 2, bad.data(), output.data());
  cache->append(id, 0, rows.data() + 64 * kHeads * kDim, rows.data(), 64);
  check_pages(*cache, id, rows, 0, 1, means_of(queries), "without the others");
}

TEST_CASE("tiered: key scaling belongs to the queries") {
  // Factors that are powers of two: keys / factor and queries * factor are exact.
  std::vector<float> factors(kHeads * kDim);
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = static_cast<float>(1 << i % 4);
  const support::ConfigPointer config(kvasir::CacheConfig::create(1));
  config->set_heads(0, kHeads * kGroup, kHeads, kDim);
  config->set_codec(0, Side::kKeys, "tiered", 2);
  config->set_codec(0, Side::kValues, "uniform", 2);
  config->set_key_scaling(0, factors.data(), static_cast<int64_t>(factors.size()));
  const support::CachePointer cache(kvasir::Cache::create(*config));
  const int64_t id = cache->new_sequence();
  auto rows = support::make_half_rows(support::Profile::kOutliers, 3, 128, kHeads * kDim);
  for (float& x : rows) x = support::round_to_half(x + (x < 0 ? -1 : 1));  // no subnormal ones after the division
  const auto queries = make_queries(5, 2);
  cache->observe(0, &id, 1, 2, queries.data());
  cache->append(id, 0, rows.data(), rows.data(), 128);
  auto stored = rows;
  for (size_t i = 0; i < stored.size(); ++i) stored[i] /= factors[i % factors.size()];
  auto means = means_of(queries);
  for (size_t i = 0; i < means.size(); ++i) means[i] = static_cast<float>(means[i]) * factors[i];
  check_pages(*cache, id, stored, 0, 1, means, "scaled");
}

TEST_CASE("tiered: layers that do not go by queries keep no count of them") {
  for (const reference::Options& options : {reference::Options{}, reference::Options{{"queries", 0.0}}}) {
    support::CacheChoice choice = tiered_cache(options);
    choice.layers.push_back(tiered_layer());
    choice.layers[1].keys = {"uniform", 2, {}};
    const support::CachePointer cache = support::make_cache(choice);
    const int64_t id = cache->new_sequence();
    const auto queries = make_queries(5, 1);
    cache->observe(0, &id, 1, 1, queries.data());
    cache->observe(1, &id, 1, 1, queries.data());
    const int64_t counted = options.empty() ? kHeads * kDim * 12 + 8 : 0;
    CHECK(support::stats_of(*cache)->window_bytes(0) == counted);
    CHECK(support::stats_of(*cache)->window_bytes(1) == 0);
    const auto rows = support::float_rows(3, 1, kHeads * kDim);
    cache->append(id, 0, rows.data(), rows.data(), 1);
    cache->append(id, 1, rows.data(), rows.data(), 1);
    const support::StatsPointer stats = support::stats_of(*cache);
    CHECK(stats->window_bytes(0) == stats->window_bytes(1) + counted);
    const int64_t fork = cache->fork(id);
    CHECK(support::stats_of(*cache)->window_bytes(0) == stats->window_bytes(0) + counted);  // rows are shared
    cache->release(fork);
    cache->release(id);
    CHECK(support::stats_of(*cache)->bytes() == 0);
  }
}

TEST_CASE("tiered: sums of queries are taken with the first of them, whatever the budget") {
  support::CacheChoice choice = tiered_cache({});
  const int64_t block = kvasir::kRowBlockTokens * 2 * kHeads * kDim * 2, counted = kHeads * kDim * 12 + 8;
  choice.budget = 2 * block;
  const support::CachePointer cache = support::make_cache(choice);
  const int64_t ids[] = {cache->new_sequence(), cache->new_sequence()};
  const auto rows = support::float_rows(3, 1, kHeads * kDim);
  for (const int64_t id : ids) cache->append(id, 0, rows.data(), rows.data(), 1);
  CHECK(support::stats_of(*cache)->bytes() == 2 * block);
  const auto queries = make_queries(5, 2);
  std::vector<float> outputs(queries.size());
  cache->attend(0, ids, 2, 1, queries.data(), outputs.data());
  CHECK(support::stats_of(*cache)->bytes() == 2 * block + 2 * counted);
  cache->attend(0, ids, 2, 1, queries.data(), outputs.data());
  CHECK(support::stats_of(*cache)->bytes() == 2 * block + 2 * counted);
  support::error_of(kvasir::ErrorCode::kBudgetExceeded, [&] {
    cache->observe(0, ids, 1, 1, queries.data());
    cache->fork(ids[0]);
  });
  cache->release(ids[0]);
  cache->append(ids[1], 0, rows.data(), rows.data(), 1);
}

TEST_CASE("tiered: sizes and stats agree with a recount") {
  for (const reference::Options& options : reference::tiered::variants(reference::Side::kKeys, kDim)) {
    const support::CachePointer cache = support::make_cache(tiered_cache(options));
    const int64_t id = cache->new_sequence();
    const auto rows = support::make_half_rows(support::Profile::kOutliers, 3, 128 * 5 + 9, kHeads * kDim);
    for (int i = 0; i < 5; ++i) {
      const auto queries = make_queries(20 + i, 2);
      cache->observe(0, &id, 1, 2, queries.data());
      cache->append(id, 0, rows.data() + static_cast<size_t>(i) * 128 * kHeads * kDim, rows.data(), 128);
    }
    int64_t key_bytes = 0, value_bytes = 0, channels[17] = {};
    for (int64_t page = 0; page < 5; ++page) {
      for (int head = 0; head < kHeads; ++head) {
        const auto part = part_of(*cache, id, page, head);
        const int n16 = part[0] | part[1] << 8, n4 = part[2] | part[3] << 8;
        channels[16] += n16;
        channels[4] += n4;
        channels[2] += kDim - n16 - n4;
        key_bytes += static_cast<int64_t>(part.size());
        value_bytes += static_cast<int64_t>(part_of(*cache, id, page, head, Side::kValues).size());
      }
    }
    const int64_t table = 64;  // five offsets of four bytes
    const support::StatsPointer stats = support::stats_of(*cache);
    // A device may keep pages in an order of its own, which takes more.
    if (std::string(stats->backend()) == "cuda") {
      CHECK(stats->page_bytes(0) >= key_bytes + value_bytes);
    } else {
      CHECK(stats->page_bytes(0) == key_bytes + value_bytes + 5 * table);
    }
    CHECK(stats->bytes() == stats->page_bytes(0) + stats->window_bytes(0));
    const double elements = 5.0 * 128 * kHeads * kDim;
    CHECK(stats->side_bits_per_element(0, Side::kKeys) == doctest::Approx(8.0 * key_bytes / elements));
    CHECK(stats->side_bits_per_element(0, Side::kValues) == doctest::Approx(8.0 * value_bytes / elements));
    CHECK(stats->page_bits_per_element(0) == doctest::Approx(8.0 * stats->page_bytes(0) / (2 * elements)));
    double bits = 0;
    for (const int width : {2, 4, 16}) {
      CHECK(stats->channels(0, Side::kKeys, width) == channels[width]);
      bits += width * channels[width];
    }
    CHECK(stats->code_bits(0, Side::kKeys) == doctest::Approx(bits / (5.0 * kHeads * kDim)));
    CHECK(stats->channels(0, Side::kValues, 2) == 5 * kHeads * kDim);
    CHECK(stats->code_bits(0, Side::kValues) == 2.0);
    CHECK_THROWS_AS(stats->channels(0, Side::kKeys, 17), kvasir::Error);
    CHECK_THROWS_AS(stats->channels(0, Side::kKeys, -1), kvasir::Error);
  }
}

TEST_CASE("tiered: the budget holds the true size of an append, and no byte less") {
  const auto rows = support::make_half_rows(support::Profile::kOutliers, 3, 128 * 3 + 9, kHeads * kDim);
  const support::CachePointer free_cache = support::make_cache(tiered_cache());
  const int64_t first = free_cache->new_sequence();
  free_cache->append(first, 0, rows.data(), rows.data(), 128 * 3 + 9);
  const int64_t needed = support::stats_of(*free_cache)->bytes();
  for (const int64_t budget : {needed, needed - 1}) {
    support::CacheChoice choice = tiered_cache();
    choice.budget = budget;
    const support::CachePointer cache = support::make_cache(choice);
    const int64_t id = cache->new_sequence();
    if (budget == needed) {
      cache->append(id, 0, rows.data(), rows.data(), 128 * 3 + 9);
      CHECK(support::stats_of(*cache)->bytes() == needed);
    } else {
      CHECK_THROWS_AS(cache->append(id, 0, rows.data(), rows.data(), 128 * 3 + 9), kvasir::Error);
      CHECK(support::stats_of(*cache)->bytes() == 0);
      CHECK(cache->length(id, 0) == 0);
    }
  }
}

TEST_CASE("tiered: random walks, with pages of different tiers in one sequence") {
  // Without queries, which the model does not know of.
  for (int round = 0; round < support::repeat(6); ++round) {
    support::CacheChoice choice = tiered_cache({{"queries", 0.0}, {"tau16", 1.3}, {"tau4", 1.0}});
    choice.layers.push_back(tiered_layer({{"queries", 0.0}, {"mode", 2.0}, {"key_bits", 3.1}, {"group", 64.0}}));
    choice.layers[1].head_dim = 48;
    choice.layers[1].values = {"uniform", 4, {}};
    choice.sinks = round % 3 == 1 ? 32 : 0;
    choice.window = round % 2 == 1 ? 40 : 0;
    if (round >= 3) choice.budget = 300'000;
    support::ModelWalk walk(choice, support::seed() + round);
    for (int i = 0; i < 120; ++i) walk.step();
    walk.compare_all();
    walk.release_all();
    if (round >= 3) CHECK_MESSAGE(walk.refusals() > 0, "the budget was never reached");
  }
}

TEST_CASE("tiered: attention over pages of different tiers, forked and cut") {
  for (const std::string& backend : support::backend_names()) {
    support::CacheChoice choice = tiered_cache({{"tau16", 2.0}, {"tau4", 0.9}});
    choice.backend = backend;
    choice.sinks = 32;
    const support::CachePointer cache = support::make_cache(choice);
    const int64_t id = cache->new_sequence();
    const auto rows = support::make_half_rows(support::Profile::kOutliers, 3, 1200, kHeads * kDim);
    std::vector<std::vector<uint8_t>> heads;
    for (int i = 0; i < 9; ++i) {
      const auto queries = make_queries(30 + i, 1);
      cache->observe(0, &id, 1, 1, queries.data());
      cache->append(id, 0, rows.data() + static_cast<size_t>(i) * 128 * kHeads * kDim, rows.data(), 128);
    }
    for (int64_t page = 0; page < cache->page_count(id, 0); ++page) {
      auto part = part_of(*cache, id, page, 1);
      part.resize(4 + kDim);
      heads.push_back(part);
    }
    std::sort(heads.begin(), heads.end());
    CHECK_MESSAGE(std::unique(heads.begin(), heads.end()) == heads.end(), "pages with equal tiers");
    const int64_t fork = cache->fork(id);
    cache->truncate(fork, 32 + 5 * 128 + 17);
    cache->append(fork, 0, rows.data(), rows.data(), 300);
    cache->truncate(id, 900);
    const support::LayerChoice& layer = choice.layers[0];
    const auto queries = support::float_rows(9, 2, layer.query_size());
    std::vector<float> output(queries.size());
    for (const int64_t sequence : {id, fork}) {
      cache->attend(0, &sequence, 1, 2, queries.data(), output.data());
      const double nmse = support::output_nmse(*cache, sequence, 0, layer, queries.data(), 2, output.data());
      CHECK_MESSAGE(nmse <= support::kExactNmse, backend, ": NMSE ", nmse);
    }
  }
}

TEST_CASE("tiered: bits go where queries look, and logits are better for it") {
  // The paper's case: some channels have huge keys that no query cares for, others modest keys and large queries.
  const int d = 128;
  support::LayerChoice layer = tiered_layer();
  layer.kv_heads = 1;
  layer.query_heads = 4;
  layer.head_dim = d;
  support::Random random(11);
  std::vector<float> rows(128 * d), queries(64 * 4 * d);
  const auto huge = [](int c) { return c % 8 == 1; };
  const auto wanted = [](int c) { return c % 8 == 5; };
  for (int i = 0; i < 128 * d; ++i) {
    rows[i] = support::round_to_half((huge(i % d) ? 30.0 : 1.0) * random.normal());
  }
  for (size_t i = 0; i < queries.size(); ++i) {
    const int c = static_cast<int>(i) % d;
    queries[i] = static_cast<float>((huge(c) ? 0.002 : wanted(c) ? 8.0 : 0.3) * random.normal());
  }
  struct Outcome {
    double error = 0;  // mean square of the logits' error
    double bits = 0;
    int64_t channels[17] = {};
    std::vector<uint8_t> part;
  };
  const auto run = [&](const reference::Options& options) {
    support::CacheChoice choice;
    layer.keys.options = options;
    choice.layers = {layer};
    const support::CachePointer cache = support::make_cache(choice);
    const int64_t id = cache->new_sequence();
    cache->observe(0, &id, 1, 64, queries.data());
    cache->append(id, 0, rows.data(), rows.data(), 128);
    const auto stored = support::read_rows(*cache, id, 0, layer, Side::kKeys, 0, 128);
    Outcome outcome;
    for (int q = 0; q < 64 * 4; ++q) {
      for (int t = 0; t < 128; ++t) {
        double error = 0;
        for (int c = 0; c < d; ++c) error += double{queries[q * d + c]} * (double{stored[t * d + c]} - rows[t * d + c]);
        outcome.error += error * error / (64 * 4 * 128);
      }
    }
    const support::StatsPointer stats = support::stats_of(*cache);
    outcome.bits = stats->code_bits(0, Side::kKeys);
    for (const int width : {2, 4, 16}) outcome.channels[width] = stats->channels(0, Side::kKeys, width);
    outcome.part = part_of(*cache, id, 0, 0);
    return outcome;
  };

  const Outcome aware = run({{"mode", 2.0}, {"key_bits", 2.7}});
  const Outcome error_only = run({{"mode", 2.0}, {"key_bits", 2.7}, {"queries", 0.0}});
  // 4 bits for the channels of the widest range, as many as pay for no fewer bits: 48 of 128 are 2.75.
  std::vector<float> ranges =
      reference::tiered::saliency(reference::tiered::shape(reference::Side::kKeys, 2, d, {}), rows.data(), nullptr);
  std::sort(ranges.begin(), ranges.end());
  const double limit = 0.5 * (double{ranges[d - 48]} + ranges[d - 49]);
  const Outcome by_scale = run({{"mode", 1.0}, {"queries", 0.0}, {"tau16", 1e30}, {"tau4", limit}});

  CHECK(aware.bits == doctest::Approx(2.7).epsilon(0.02));
  CHECK(error_only.bits >= aware.bits - 0.04);
  CHECK(by_scale.bits == doctest::Approx(2.75));
  const int wide = aware.channels[16] + aware.channels[4];
  for (int i = 0; i < d; ++i) {
    const int channel = aware.part[4 + i];
    if (huge(channel)) CHECK_MESSAGE(i >= wide, "huge channel ", channel, " has more than 2 bits");
    if (wanted(channel)) CHECK_MESSAGE(i < wide, "wanted channel ", channel, " has 2 bits");
  }
  // The wanted channels make up the error: each has (8 * step)^2 / 12 of it at 2 bits, and a 25th of that at 4. Among
  // the others errors are 700 times smaller, so the error falls to about a 25th; a fifth leaves room for chance.
  CHECK_MESSAGE(aware.error <= 0.2 * error_only.error, aware.error, " against ", error_only.error);
  CHECK_MESSAGE(aware.error <= 0.2 * by_scale.error, aware.error, " against ", by_scale.error);
}

TEST_CASE("tiered: values beside it may shrink, and parts of any size move up") {
  // What a page that dropped to b bits holds is what it would hold at b bits from the start.
  const auto rows = support::make_half_rows(support::Profile::kOutliers, 3, 128 * 9, kHeads * kDim);
  const auto fill = [&](int value_bits, int64_t budget) {
    support::CacheChoice choice = tiered_cache({{"tau16", 1.5}, {"tau4", 1.0}});
    choice.layers[0].values = {"progressive", value_bits, {}};
    choice.budget = budget;
    support::CachePointer cache = support::make_cache(choice);
    const int64_t id = cache->new_sequence();
    for (int i = 0; i < 9; ++i) {
      const auto queries = make_queries(40 + i, 1);
      cache->observe(0, &id, 1, 1, queries.data());
      cache->append(id, 0, rows.data() + static_cast<size_t>(i) * 128 * kHeads * kDim, rows.data(), 128);
    }
    return std::make_pair(std::move(cache), id);
  };
  std::map<int, std::pair<support::CachePointer, int64_t>> plain;
  for (const int bits : {16, 8, 4, 2}) plain[bits] = fill(bits, 0);
  const int64_t wide = support::stats_of(*plain.at(16).first)->bytes();
  const int64_t narrow = support::stats_of(*plain.at(2).first)->bytes();
  for (int step = 0; step <= 8; ++step) {
    const int64_t budget = narrow + (wide - narrow) * step / 8;
    const auto [cache, id] = fill(16, budget);
    CHECK(support::stats_of(*cache)->bytes() <= budget);
    CHECK((support::stats_of(*cache)->shrinks(0) > 0) == (step < 8));
    int64_t bytes = 0;
    for (int64_t page = 0; page < 9; ++page) {
      for (int head = 0; head < kHeads; ++head) {
        const auto keys = part_of(*cache, id, page, head);
        const auto values = part_of(*cache, id, page, head, Side::kValues);
        CHECK(keys == part_of(*plain.at(2).first, plain.at(2).second, page, head));
        bool known = false;
        for (const auto& [bits, other] : plain) {
          known |= values == part_of(*other.first, other.second, page, head, Side::kValues);
        }
        CHECK_MESSAGE(known, "page ", page, " at step ", step);
        bytes += static_cast<int64_t>(keys.size() + values.size());
      }
    }
    CHECK(support::stats_of(*cache)->page_bytes(0) == bytes + 9 * 64);
    const auto queries = support::float_rows(9, 1, kHeads * kGroup * kDim);
    std::vector<float> output(queries.size());
    cache->attend(0, &id, 1, 1, queries.data(), output.data());
    CHECK(support::output_nmse(*cache, id, 0, tiered_layer(), queries.data(), 1, output.data()) <= support::kExactNmse);
  }
}

TEST_CASE("tiered: attends and forks of one sequence overlap") {
  const support::ThreadsGuard guard(2);
  const support::CachePointer cache = support::make_cache(tiered_cache());
  const int64_t id = cache->new_sequence();
  const auto rows = support::make_half_rows(support::Profile::kOutliers, 3, 256, kHeads * kDim);
  cache->append(id, 0, rows.data(), rows.data(), 200);
  const auto queries = make_queries(5, 1);
  const auto body = [&](int thread) {
    std::vector<float> output(queries.size());
    for (int i = 0; i < support::repeat(50); ++i) {
      if (thread == 0) {
        const int64_t fork = cache->fork(id);
        cache->attend(0, &fork, 1, 1, queries.data(), output.data());
        cache->release(fork);
      } else {
        cache->attend(0, &id, 1, 1, queries.data(), output.data());
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
  // Equal queries, however many: the mean is theirs.
  cache->append(id, 0, rows.data() + 200 * kHeads * kDim, rows.data(), 56);
  check_pages(*cache, id, rows, 1, 2, means_of(queries), "after them");
}
