// Progressive caches: room is made by shrinking, never past a budget, never below a floor, and readers see whole pages.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "reference/progressive_page.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/tolerance.h"

using kvasir::ShrinkPolicy;
using kvasir::Side;

namespace {

constexpr ShrinkPolicy kPolicies[] = {ShrinkPolicy::kOldest, ShrinkPolicy::kLayer};

support::SideChoice progressive(int bits = 16, double floor = 2) { return {"progressive", bits, {{"floor", floor}}}; }

support::LayerChoice layer_of(const support::SideChoice& keys, const support::SideChoice& values) {
  support::LayerChoice layer;
  layer.keys = keys;
  layer.values = values;
  return layer;
}

support::CacheChoice cache_of(std::vector<support::LayerChoice> layers, int64_t budget,
                              ShrinkPolicy policy = ShrinkPolicy::kOldest) {
  support::CacheChoice choice;
  choice.layers = std::move(layers);
  choice.budget = budget;
  choice.shrink_policy = policy;
  return choice;
}

// Bytes of one page, from the format's description alone.
int64_t page_bytes(const support::LayerChoice& layer, int key_bits, int value_bits) {
  const auto part = [&](reference::Side side, int bits) {
    return static_cast<int64_t>(
        reference::uniform::page_bytes(reference::progressive::shape(side, bits, layer.head_dim, {})));
  };
  return layer.kv_heads * (part(reference::Side::kKeys, key_bits) + part(reference::Side::kValues, value_bits));
}

// Bytes of so many 16-bit rows of one sequence: they come in blocks of 16.
int64_t window_bytes(const support::LayerChoice& layer, int rows) {
  return int64_t{2} * 2 * 16 * layer.row_size() * ((rows + 15) / 16);
}

std::vector<uint8_t> part_of(kvasir::Cache& cache, int64_t id, int layer, int64_t page, Side side, int head) {
  std::vector<uint8_t> bytes(static_cast<size_t>(cache.read_page(id, layer, page, side, head, nullptr, 0)));
  cache.read_page(id, layer, page, side, head, bytes.data(), static_cast<int64_t>(bytes.size()));
  return bytes;
}

// The width that a part of this size has.
int bits_of(const support::LayerChoice& layer, Side side, size_t bytes) {
  for (const int bits : {16, 8, 4, 2}) {
    const auto shape = reference::progressive::shape(static_cast<reference::Side>(side), bits, layer.head_dim, {});
    if (reference::uniform::page_bytes(shape) == bytes) return bits;
  }
  return 0;
}

// One head of page `page` of rows [tokens][kv_heads][head_dim].
std::vector<float> head_rows(const support::LayerChoice& layer, const std::vector<float>& rows, int sinks, int64_t page,
                             int head) {
  std::vector<float> out;
  for (int t = 0; t < 128; ++t) {
    const size_t token = static_cast<size_t>(sinks + page * 128 + t);
    const float* row = rows.data() + (token * layer.kv_heads + head) * layer.head_dim;
    out.insert(out.end(), row, row + layer.head_dim);
  }
  return out;
}

// Whether all sealed parts are what sealing the rows directly at their present width gives; the widths, by page.
std::vector<int> check_pages(kvasir::Cache& cache, int64_t id, const support::LayerChoice& layer, int sinks,
                             const std::vector<float>& keys, const std::vector<float>& values) {
  std::vector<int> widths;
  for (int64_t page = 0; page < cache.page_count(id, 0); ++page) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      for (int head = 0; head < layer.kv_heads; ++head) {
        const auto bytes = part_of(cache, id, 0, page, side, head);
        const int bits = bits_of(layer, side, bytes.size());
        const auto shape = reference::progressive::shape(static_cast<reference::Side>(side), bits, layer.head_dim, {});
        const auto rows = head_rows(layer, side == Side::kKeys ? keys : values, sinks, page, head);
        const auto direct = reference::progressive::encode(shape, rows.data());
        if (bytes != direct) FAIL("page ", page, ", ", bits, " bits, head ", head);
        if (side == Side::kKeys && head == 0) widths.push_back(bits);
      }
    }
  }
  return widths;
}

kvasir::ErrorCode code_of_append(kvasir::Cache& cache, int64_t id, const std::vector<float>& rows, int64_t tokens,
                                 std::string* text = nullptr) {
  try {
    cache.append(id, 0, rows.data(), rows.data(), tokens);
  } catch (const kvasir::Error& error) {
    if (text) *text = error.what();
    return error.code();
  }
  return {};
}

}  // namespace

TEST_CASE("progressive: 20,000 tokens into 2.5 bits per element") {
  const int total = support::kSanitized ? 4000 : 20000;
  const int sinks = 1;
  for (const ShrinkPolicy policy : kPolicies) {
    support::LayerChoice layer = layer_of(progressive(), progressive());
    layer.head_dim = 128;
    const int64_t elements = int64_t{2} * layer.row_size() * total;
    const int64_t rows = window_bytes(layer, sinks) + window_bytes(layer, 127);
    const int64_t budget = elements * 5 / 16 + rows;
    support::CacheChoice choice = cache_of({layer}, budget, policy);
    choice.sinks = sinks;
    const support::CachePointer cache = support::make_cache(choice);
    const auto& keys = support::half_rows(support::Profile::kOutliers, 1, total, layer.row_size());
    const auto& values = support::half_rows(support::Profile::kNormal, 2, total, layer.row_size());
    const int64_t id = cache->new_sequence();
    // While all pages fit at 16 bits, the first tokens are read with the error of 16 bits.
    const int64_t wide_pages = (budget - rows) / page_bytes(layer, 16, 16);
    int64_t length = 0;
    const auto append = [&](int64_t tokens) {
      const size_t first = static_cast<size_t>(length) * layer.row_size();
      cache->append(id, 0, keys.data() + first, values.data() + first, tokens);
      length += tokens;
      CHECK(support::stats_of(*cache)->bytes() <= budget);
    };
    append(sinks + wide_pages * 128);
    CHECK(support::stats_of(*cache)->shrinks(0) == 0);
    CHECK(support::stats_of(*cache)->code_bits(0, Side::kKeys) == 16.0);
    const auto early = support::read_rows(*cache, id, 0, layer, Side::kKeys, 0, 128);
    for (int c = 0; c < layer.row_size(); ++c) {
      float low = INFINITY, high = -INFINITY;  // of the first page
      for (int t = sinks; t < sinks + 128; ++t) {
        low = std::min(low, keys[static_cast<size_t>(t) * layer.row_size() + c]);
        high = std::max(high, keys[static_cast<size_t>(t) * layer.row_size() + c]);
      }
      // Half a cell of 65536 over a range that float16 rounds up, and the roundings of the decoded float32.
      const double limit = 0.5 * (high - low) * (1 + 0x1p-10) / 65536 + 3 * 0x1p-24 * std::max(-low, high);
      for (int t = sinks; t < 128; ++t) {
        const size_t i = static_cast<size_t>(t) * layer.row_size() + c;
        CHECK(std::abs(early[i] - keys[i]) <= limit);
      }
    }
    while (length < total) append(std::min<int64_t>(77, total - length));

    const auto stats = support::stats_of(*cache);
    CHECK(stats->peak_bytes() <= budget);
    CHECK(stats->bytes() > (budget - rows) * 9 / 10);  // precision was not given up for nothing
    CHECK(stats->shrinks(0) > wide_pages);
    CHECK(stats->shrunk_bytes(0) > 0);
    const auto widths = check_pages(*cache, id, layer, sinks, keys, values);
    REQUIRE(static_cast<int64_t>(widths.size()) == (total - sinks) / 128);
    CHECK(widths.front() == 2);
    if (policy == ShrinkPolicy::kOldest) {
      CHECK(std::is_sorted(widths.begin(), widths.end()));
      CHECK(widths.back() >= 4);
    } else {
      CHECK(*std::max_element(widths.begin(), widths.end()) == widths.front());
    }
    REQUIRE(stats->steps(0) >= 2);
    CHECK(stats->step_bits(0, 0) == 8);
    CHECK(stats->step_bits(0, 1) == 4);
    CHECK(stats->step_pages(0, 0) >= wide_pages);
    CHECK(stats->step_pages(0, 1) > stats->step_pages(0, 0));

    const auto queries = support::float_rows(9, 1, layer.query_size());
    std::vector<float> outputs(queries.size());
    cache->attend(0, &id, 1, 1, queries.data(), outputs.data());
    CHECK(support::output_nmse(*cache, id, 0, layer, queries.data(), 1, outputs.data()) <= support::kExactNmse);
  }
}

TEST_CASE("progressive: the oldest page shrinks first, and sealing one page shrinks at most three") {
  const support::LayerChoice layer = layer_of(progressive(), progressive());
  const int64_t budget = 10 * page_bytes(layer, 16, 16);
  const support::CachePointer cache = support::make_cache(cache_of({layer}, budget));
  const auto& rows = support::half_rows(support::Profile::kNormal, 3, 128, layer.row_size());
  std::vector<float> all;
  const int64_t id = cache->new_sequence();
  int64_t before = 0;
  int page = 0;
  for (;; ++page) {
    if (code_of_append(*cache, id, rows, 128) == kvasir::ErrorCode::kBudgetExceeded) break;
    all.insert(all.end(), rows.begin(), rows.end());
    const int64_t shrinks = support::stats_of(*cache)->shrinks(0);
    CHECK(shrinks - before <= 3);
    before = shrinks;
    const auto widths = check_pages(*cache, id, layer, 0, all, all);
    CHECK(std::is_sorted(widths.begin(), widths.end()));
    // At most two widths at a time, one step apart.
    CHECK(widths.back() <= 2 * widths.front());
  }
  // At the end all have 2 bits, and as many fit as fit.
  CHECK(page == 10 * page_bytes(layer, 16, 16) / page_bytes(layer, 2, 2));
}

TEST_CASE("progressive: a prompt larger than the budget gives up the precision of its own oldest pages") {
  const support::LayerChoice layer = layer_of(progressive(), progressive());
  const int64_t budget = 3 * page_bytes(layer, 16, 16) + 4 * page_bytes(layer, 8, 8);
  const support::CachePointer cache = support::make_cache(cache_of({layer}, budget));
  const auto& rows = support::half_rows(support::Profile::kNormal, 4, 7 * 128, layer.row_size());
  const int64_t id = cache->new_sequence();
  cache->append(id, 0, rows.data(), rows.data(), 7 * 128);
  CHECK(check_pages(*cache, id, layer, 0, rows, rows) == std::vector<int>{8, 8, 8, 8, 16, 16, 16});
  CHECK(support::stats_of(*cache)->shrinks(0) == 0);
  CHECK(support::stats_of(*cache)->bytes() == budget);
}

TEST_CASE("progressive: at the floor nothing changes and the numbers are in the error") {
  for (const ShrinkPolicy policy : kPolicies) {
    const support::LayerChoice layer = layer_of(progressive(16, 8), progressive(16, 4));
    const int64_t budget = 4 * page_bytes(layer, 8, 4) + window_bytes(layer, 2) + 100;
    const support::CachePointer cache = support::make_cache(cache_of({layer}, budget, policy));
    const auto& rows = support::half_rows(support::Profile::kNormal, 5, 700, layer.row_size());
    const int64_t id = cache->new_sequence();
    cache->append(id, 0, rows.data(), rows.data(), 130);
    const auto wide = support::stats_of(*cache);
    CHECK(wide->code_bits(0, Side::kKeys) == 16.0);
    const auto page = part_of(*cache, id, 0, 0, Side::kKeys, 0);
    // Five pages do not fit at their floor: not even the one there is shrinks.
    std::string text;
    REQUIRE(code_of_append(*cache, id, rows, 4 * 128, &text) == kvasir::ErrorCode::kBudgetExceeded);
    const int64_t room = budget - window_bytes(layer, 2) - page_bytes(layer, 16, 16);
    const int64_t freeable = page_bytes(layer, 16, 16) - page_bytes(layer, 8, 4);
    for (const int64_t number : {room, freeable, 4 * page_bytes(layer, 8, 4)}) {
      CHECK_MESSAGE(text.find(std::to_string(number)) != std::string::npos, text, " should have ", number);
    }
    CHECK(cache->length(id, 0) == 130);
    CHECK(part_of(*cache, id, 0, 0, Side::kKeys, 0) == page);
    CHECK(support::stats_of(*cache)->bytes() == wide->bytes());
    CHECK(support::stats_of(*cache)->shrinks(0) == 0);
    // Four do.
    cache->append(id, 0, rows.data(), rows.data(), 4 * 128 - 128);  // with as many 16-bit rows as before
    CHECK(cache->page_count(id, 0) == 4);
    CHECK(support::stats_of(*cache)->code_bits(0, Side::kKeys) == 8.0);
    CHECK(support::stats_of(*cache)->code_bits(0, Side::kValues) == 4.0);
    CHECK(code_of_append(*cache, id, rows, 128) == kvasir::ErrorCode::kBudgetExceeded);
  }
}

TEST_CASE("progressive: forks share shrunk pages, and a batch shares one budget") {
  for (const ShrinkPolicy policy : kPolicies) {
    const support::LayerChoice layer = layer_of(progressive(), progressive());
    const int64_t budget = 8 * page_bytes(layer, 16, 16);
    const support::CachePointer cache = support::make_cache(cache_of({layer}, budget, policy));
    const auto& rows = support::half_rows(support::Profile::kOutliers, 6, 40 * 128, layer.row_size());
    const int64_t original = cache->new_sequence();
    cache->append(original, 0, rows.data(), rows.data(), 6 * 128);
    const int64_t fork = cache->fork(original);
    CHECK(support::stats_of(*cache)->pages(0) == 6);
    // Another sequence needs the room.
    const int64_t other = cache->new_sequence();
    cache->append(other, 0, rows.data(), rows.data(), 8 * 128);
    const auto stats = support::stats_of(*cache);
    CHECK(stats->pages(0) == 14);
    CHECK(stats->bytes() <= budget);
    CHECK(stats->shrinks(0) <= 6);  // each shared page once
    CHECK(stats->shrinks(0) >= 4);
    const auto widths = check_pages(*cache, original, layer, 0, rows, rows);
    CHECK(check_pages(*cache, fork, layer, 0, rows, rows) == widths);
    CHECK(widths.front() == 8);
    check_pages(*cache, other, layer, 0, rows, rows);
    const auto queries = support::float_rows(7, 3, layer.query_size());
    std::vector<float> outputs(queries.size());
    const int64_t ids[] = {original, fork, other};
    cache->attend(0, ids, 3, 1, queries.data(), outputs.data());
    for (int i = 0; i < 3; ++i) {
      const size_t row = static_cast<size_t>(i) * layer.query_size();
      CHECK(support::output_nmse(*cache, ids[i], 0, layer, queries.data() + row, 1, outputs.data() + row) <=
            support::kExactNmse);
    }
    // What goes frees its room, and what comes is wide again.
    cache->release(original);
    CHECK(support::stats_of(*cache)->pages(0) == 14);
    cache->release(fork);
    cache->release(other);
    CHECK(support::stats_of(*cache)->bytes() == 0);
    const int64_t next = cache->new_sequence();
    cache->append(next, 0, rows.data(), rows.data(), 2 * 128);
    CHECK(support::stats_of(*cache)->code_bits(0, Side::kKeys) == 16.0);
  }
}

TEST_CASE("progressive: windows make room too, or an append fails and nothing shrank") {
  const support::LayerChoice layer = layer_of(progressive(), progressive());
  const support::CachePointer cache = support::make_cache(cache_of({layer, layer}, 4 * page_bytes(layer, 16, 16)));
  const auto& rows = support::half_rows(support::Profile::kNormal, 8, 3 * 128, layer.row_size());
  const int64_t id = cache->new_sequence();
  for (const int each : {0, 1}) cache->append(id, each, rows.data(), rows.data(), 2 * 128);
  CHECK(support::stats_of(*cache)->shrinks(kvasir::kAllLayers) == 0);
  // Forks cost nothing, their first tokens a block, until no page can shrink any more.
  int64_t shrinks = 0, bytes = 0;
  int forks = 0;
  for (;; ++forks) {
    shrinks = support::stats_of(*cache)->shrinks(kvasir::kAllLayers);
    bytes = support::stats_of(*cache)->bytes();
    const int64_t fork = cache->fork(id);
    CHECK(support::stats_of(*cache)->bytes() == bytes);
    if (code_of_append(*cache, fork, rows, 1) == kvasir::ErrorCode::kBudgetExceeded) break;
    CHECK(support::stats_of(*cache)->window_bytes(0) == (forks + 1) * window_bytes(layer, 1));
  }
  CHECK(shrinks > 0);
  const int64_t room = 4 * (page_bytes(layer, 16, 16) - page_bytes(layer, 2, 2));
  CHECK(forks == room / window_bytes(layer, 1));
  CHECK(support::stats_of(*cache)->shrinks(kvasir::kAllLayers) == shrinks);
  CHECK(support::stats_of(*cache)->bytes() == bytes);
  check_pages(*cache, id, layer, 0, rows, rows);
}

TEST_CASE("progressive: layers with floors and budgets of their own") {
  support::LayerChoice first = layer_of(progressive(16, 8), progressive(16, 8));
  support::LayerChoice second = layer_of(progressive(16, 2), progressive(16, 2));
  support::LayerChoice limited = layer_of(progressive(16, 2), progressive(16, 2));
  limited.budget = 3 * page_bytes(limited, 4, 4);
  for (const ShrinkPolicy policy : kPolicies) {
    const int64_t budget = 3 * page_bytes(limited, 4, 4) + 8 * page_bytes(first, 8, 8) + 8 * page_bytes(second, 2, 2);
    const support::CachePointer cache = support::make_cache(cache_of({first, second, limited}, budget, policy));
    const auto& rows = support::half_rows(support::Profile::kNormal, 9, 8 * 128, layer_of({}, {}).row_size());
    const int64_t id = cache->new_sequence();
    for (int page = 0; page < 8; ++page) {
      for (int layer = 0; layer < (page < 3 ? 3 : 2); ++layer) {
        const size_t at = static_cast<size_t>(page) * 128 * first.row_size();
        cache->append(id, layer, rows.data() + at, rows.data() + at, 128);
        CHECK(support::stats_of(*cache)->bytes() <= budget);
        CHECK(support::stats_of(*cache)->layer_bytes(2) <= limited.budget);
      }
    }
    // The first layer stays at its floor; the second had to give what the first needed.
    CHECK(support::stats_of(*cache)->code_bits(0, Side::kKeys) == 8.0);
    CHECK(support::stats_of(*cache)->code_bits(1, Side::kKeys) < 4.0);
    CHECK(support::stats_of(*cache)->layer_bytes(2) <= limited.budget);
    CHECK(code_of_append(*cache, id, rows, 128) == kvasir::ErrorCode::kBudgetExceeded);
  }
}

TEST_CASE("progressive: keys that shrink beside values that cannot") {
  support::LayerChoice layer = layer_of(progressive(), {"uniform", 2, {}});
  const support::CachePointer wide = support::make_cache(cache_of({layer}, 0));
  const auto& rows = support::half_rows(support::Profile::kOutliers, 10, 6 * 128 + 50, layer.row_size());
  const int64_t tokens = 6 * 128 + 50;
  int64_t id = wide->new_sequence();
  wide->append(id, 0, rows.data(), rows.data(), tokens);
  const auto values = support::read_rows(*wide, id, 0, layer, Side::kValues, 0, tokens);
  const int64_t all = support::stats_of(*wide)->bytes();

  const support::CachePointer cache = support::make_cache(cache_of({layer}, all / 2));
  id = cache->new_sequence();
  for (int64_t t = 0; t < tokens; t += 128) {
    const size_t at = static_cast<size_t>(t) * layer.row_size();
    cache->append(id, 0, rows.data() + at, rows.data() + at, std::min<int64_t>(128, tokens - t));
  }
  CHECK(support::stats_of(*cache)->code_bits(0, Side::kKeys) < 16.0);
  CHECK(support::stats_of(*cache)->code_bits(0, Side::kValues) == 2.0);
  CHECK(support::read_rows(*cache, id, 0, layer, Side::kValues, 0, tokens) == values);
  const auto queries = support::float_rows(11, 1, layer.query_size());
  std::vector<float> outputs(queries.size());
  cache->attend(0, &id, 1, 1, queries.data(), outputs.data());
  CHECK(support::output_nmse(*cache, id, 0, layer, queries.data(), 1, outputs.data()) <= support::kExactNmse);
  // A cut through a shrunk page gives back what the page held.
  const auto before = support::read_rows(*cache, id, 0, layer, Side::kKeys, 0, 200);
  cache->truncate(id, 200);
  const auto after = support::read_rows(*cache, id, 0, layer, Side::kKeys, 0, 200);
  for (size_t i = 0; i < after.size(); ++i) CHECK(std::abs(after[i] - before[i]) <= 0x1p-11 * std::abs(before[i]));
}

TEST_CASE("progressive: a page leaves room for the table of its other side, or is refused before any page shrinks") {
  const support::LayerChoice layer = layer_of(progressive(), {"pattern", 2, {}});
  const auto& rows = support::half_rows(support::Profile::kOutliers, 12, 128, layer.row_size());
  int fitted = 0, refused = 0;
  for (int64_t budget = 10'000; budget < 60'000; budget += 256) {
    CAPTURE(budget);
    const support::CachePointer cache = support::make_cache(cache_of({layer}, budget));
    const int64_t older = cache->new_sequence(), id = cache->new_sequence();
    if (code_of_append(*cache, older, rows, 128) != kvasir::ErrorCode{}) continue;
    const int64_t shrinks = support::stats_of(*cache)->shrinks(0);
    if (code_of_append(*cache, id, rows, 128) == kvasir::ErrorCode{}) {
      ++fitted;
      continue;
    }
    ++refused;
    CHECK(fitted == 0);  // a smaller budget held it
    CHECK(support::stats_of(*cache)->shrinks(0) == shrinks);
  }
  CHECK(fitted > 0);
  CHECK(refused > 0);
}

TEST_CASE("progressive: steps of layers whose pages others made narrower") {
  const support::LayerChoice layer = layer_of(progressive(), progressive());
  const auto& rows = support::half_rows(support::Profile::kOutliers, 13, 640, layer.row_size());
  const int64_t budget = 5 * page_bytes(layer, 16, 16) + window_bytes(layer, 128);
  const support::CachePointer cache = support::make_cache(cache_of({layer}, budget, ShrinkPolicy::kLayer));
  const int64_t id = cache->new_sequence();
  cache->append(id, 0, rows.data(), rows.data(), 640);
  CHECK(support::stats_of(*cache)->steps(0) == 0);
  cache->reserve(cache->new_sequence(), 200);
  cache->append(id, 0, rows.data(), rows.data(), 128);
  const int bits = bits_of(layer, Side::kKeys, part_of(*cache, id, 0, 5, Side::kKeys, 0).size());
  CHECK(bits == 8);
  const auto stats = support::stats_of(*cache);
  REQUIRE(stats->steps(0) == 1);
  CHECK(stats->step_bits(0, 0) == bits);
  CHECK(stats->step_pages(0, 0) == 5);
}

TEST_CASE("progressive: readers never see a page half shrunk") {
  const support::LayerChoice layer = layer_of(progressive(), progressive());
  const int64_t budget = 12 * page_bytes(layer, 16, 16);
  const support::CachePointer cache = support::make_cache(cache_of({layer}, budget));
  const auto& rows = support::half_rows(support::Profile::kNormal, 12, 8 * 128, layer.row_size());
  const int64_t read = cache->new_sequence();
  cache->append(read, 0, rows.data(), rows.data(), 8 * 128);
  const auto queries = support::float_rows(13, 1, layer.query_size());
  const auto exact = reference::attention(layer.shape(), rows.data(), rows.data(), 0, 8 * 128, queries.data(), 1);
  std::atomic<bool> done{false};
  // 2-bit codes of normal data still leave most of the output; a torn page would not.
  std::thread reader([&] {
    std::vector<float> outputs(queries.size());
    while (!done) {
      cache->attend(0, &read, 1, 1, queries.data(), outputs.data());
      CHECK(reference::nmse(outputs.data(), exact) < 1.0);
      CHECK(part_of(*cache, read, 0, 0, Side::kKeys, 0).size() > 0);
    }
  });
  std::thread writer([&] {
    const int64_t other = cache->new_sequence();
    for (int i = 0; i < 30; ++i) {
      cache->append(other, 0, rows.data(), rows.data(), 128);
      if (i % 10 == 9) cache->truncate(other, 5 * 128);
    }
  });
  writer.join();
  done = true;
  reader.join();
  CHECK(support::stats_of(*cache)->peak_bytes() <= budget);
  check_pages(*cache, read, layer, 0, rows, rows);
}

TEST_CASE("key scaling: powers of two change no bit, and read gives keys as they were appended") {
  for (const char* codec : {"f16", "uniform", "progressive"}) {
    support::LayerChoice plain = layer_of({codec, 16, {}}, {codec, 16, {}});
    support::LayerChoice scaled = plain;
    support::Random random(14);
    for (int i = 0; i < plain.row_size(); ++i) {
      // Below 1, so that no stored key becomes subnormal; the codecs' ranges ask for one factor per group.
      scaled.key_scaling.push_back(std::ldexp(1.0f, codec[0] == 'f' ? -random.below(5) : -3));
    }
    const auto& rows = support::half_rows(support::Profile::kNormal, 15, 300, plain.row_size());
    const auto queries = support::float_rows(16, 1, plain.query_size());
    std::vector<float> outputs[2];
    std::vector<float> keys[2];
    for (const int which : {0, 1}) {
      const support::LayerChoice& layer = which == 0 ? plain : scaled;
      const support::CachePointer cache = support::make_cache(cache_of({layer}, 0));
      const int64_t id = cache->new_sequence();
      cache->append(id, 0, rows.data(), rows.data(), 300);
      outputs[which].resize(queries.size());
      cache->attend(0, &id, 1, 1, queries.data(), outputs[which].data());
      keys[which] = support::read_rows(*cache, id, 0, layer, Side::kKeys, 0, 300);
    }
    CHECK_MESSAGE(keys[0] == keys[1], codec);
    const std::vector<double> expected(outputs[0].begin(), outputs[0].end());
    CHECK(reference::nmse(outputs[1].data(), expected) <= support::between_two(support::kFloatNmse));
  }
}

TEST_CASE("key scaling: every element type, and factors that make no sense") {
  support::LayerChoice layer;
  for (int i = 0; i < layer.row_size(); ++i) layer.key_scaling.push_back(i % 2 == 0 ? 0.5f : 3.0f);
  const auto& rows = support::half_rows(support::Profile::kNormal, 17, 10, layer.row_size());
  std::vector<uint16_t> halves(rows.size()), bfloats(rows.size());
  std::vector<float> truncated(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    halves[i] = reference::half_nearest(rows[i]);
    uint32_t bits;
    std::memcpy(&bits, &rows[i], 4);
    bfloats[i] = static_cast<uint16_t>(bits >> 16);
    bits &= 0xffff0000u;
    std::memcpy(&truncated[i], &bits, 4);
  }
  const support::CachePointer cache = support::make_cache(cache_of({layer}, 0));
  const int64_t a = cache->new_sequence(), b = cache->new_sequence(), c = cache->new_sequence();
  cache->append(a, 0, rows.data(), rows.data(), 10);
  cache->append_f16(b, 0, halves.data(), halves.data(), 10);
  cache->append_bf16(c, 0, bfloats.data(), bfloats.data(), 10);
  const auto read = [&](int64_t id) { return support::read_rows(*cache, id, 0, layer, Side::kKeys, 0, 10); };
  CHECK(read(a) == read(b));
  const auto from_bf16 = read(c);
  for (size_t i = 0; i < rows.size(); ++i) {
    // Divided in float32, stored in float16, multiplied again.
    CHECK(std::abs(from_bf16[i] - truncated[i]) <= std::abs(truncated[i]) * (0x1p-11 + 0x1p-22) + 0x1p-24);
  }
  // A key that is in range may leave it by division: refused, and nothing is stored.
  std::vector<float> large(layer.row_size(), 30000.0f);
  CHECK_THROWS_AS(cache->append(a, 0, large.data(), rows.data(), 1), kvasir::Error);
  CHECK(cache->length(a, 0) == 10);

  support::ConfigPointer config(kvasir::CacheConfig::create(1));
  for (const float bad : {0.0f, -1.0f, INFINITY, NAN}) {
    CHECK_THROWS_AS(config->set_key_scaling(0, &bad, 1), kvasir::Error);
  }
  CHECK_THROWS_AS(config->set_key_scaling(0, nullptr, 1), kvasir::Error);
  layer.key_scaling.pop_back();
  CHECK_THROWS_AS(support::make_cache(cache_of({layer}, 0)), kvasir::Error);
}
