// Append: how the stream is cut does not matter, nor the element type; what is refused changes nothing.
#include <cmath>
#include <limits>
#include <map>

#include "reference/half.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"

using kvasir::Side;

namespace {

constexpr int kTokens = 700;

support::CacheChoice one_layer(const support::SideChoice& keys, const support::SideChoice& values) {
  support::LayerChoice layer;
  layer.keys = keys;
  layer.values = values;
  support::CacheChoice choice;
  choice.layers = {layer};
  return choice;
}

// All that can be seen of a sequence: rows and page bytes.
struct Snapshot {
  std::vector<float> rows[2];
  std::vector<uint8_t> pages;
  bool operator==(const Snapshot& other) const {
    return rows[0] == other.rows[0] && rows[1] == other.rows[1] && pages == other.pages;
  }
};

Snapshot snapshot(kvasir::Cache& cache, int64_t id, const support::LayerChoice& layer) {
  Snapshot all;
  const int64_t length = cache.length(id, 0);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    all.rows[static_cast<int>(side)] = support::read_rows(cache, id, 0, layer, side, 0, length);
    for (int64_t page = 0; page < cache.page_count(id, 0); ++page) {
      for (int head = 0; head < layer.kv_heads; ++head) {
        const int64_t bytes = cache.read_page(id, 0, page, side, head, nullptr, 0);
        std::vector<uint8_t> part(static_cast<size_t>(bytes));
        REQUIRE(cache.read_page(id, 0, page, side, head, part.data(), bytes) == bytes);
        all.pages.insert(all.pages.end(), part.begin(), part.end());
      }
    }
  }
  return all;
}

void append_in_cuts(kvasir::Cache& cache, int64_t id, int row_size, const std::vector<float>& keys,
                    const std::vector<float>& values, support::Random& random, int longest) {
  for (int done = 0; done < kTokens;) {
    const int tokens = std::min(kTokens - done, 1 + random.below(longest));
    cache.append(id, 0, keys.data() + done * row_size, values.data() + done * row_size, tokens);
    done += tokens;
  }
}

}  // namespace

TEST_CASE("append: the result does not depend on how the tokens were cut, on any backend") {
  const support::SideChoice f16, two{"uniform", 2, {}}, three{"uniform", 3, {{"axis", 1.0}, {"group", 32.0}}};
  for (const auto& [keys_choice, values_choice] : {std::pair(f16, f16), std::pair(two, three)}) {
    for (const int sinks : {0, 7, 200}) {
      for (const int window : {0, 100}) {
        support::CacheChoice choice = one_layer(keys_choice, values_choice);
        choice.sinks = sinks;
        choice.window = window;
        const int row_size = choice.layers[0].row_size();
        const auto keys = support::half_rows(support::Profile::kOutliers, 1, kTokens, row_size);
        const auto values = support::float_rows(2, kTokens, row_size);
        Snapshot expected;
        bool first = true;
        for (const std::string& backend : support::backend_names()) {
          choice.backend = backend;
          const support::CachePointer cache = support::make_cache(choice);
          support::Random random(support::seed());
          for (const int longest : {1, 3, 130, 400, kTokens}) {
            const int64_t id = cache->new_sequence();
            append_in_cuts(*cache, id, row_size, keys, values, random, longest);
            const Snapshot got = snapshot(*cache, id, choice.layers[0]);
            if (first) expected = got;
            first = false;
            CHECK_MESSAGE(got == expected, backend, ", cuts up to ", longest, ", sinks ", sinks, ", window ", window);
          }
        }
        // A page is sealed as soon as 128 tokens beyond sinks and window have gathered.
        const int64_t pages = (kTokens - sinks - window) / 128;
        const support::CachePointer cache = support::make_cache(choice);
        const int64_t id = cache->new_sequence();
        cache->append(id, 0, keys.data(), values.data(), kTokens);
        CHECK(cache->page_count(id, 0) == pages);
      }
    }
  }
}

TEST_CASE("append: float16, bfloat16 and float32 of the same values are the same sequence") {
  const support::CacheChoice choice = one_layer({"uniform", 4, {}}, {"uniform", 2, {}});
  const int row_size = choice.layers[0].row_size();
  support::Random random(9);
  std::vector<uint16_t> halves[2], bfloats[2];
  std::vector<float> from_halves[2], from_bfloats[2];
  for (int side = 0; side < 2; ++side) {
    for (int i = 0; i < kTokens * row_size; ++i) {
      const uint16_t half = reference::half_nearest(random.normal());
      halves[side].push_back(half);
      from_halves[side].push_back(static_cast<float>(reference::half_value(half)));
      // Exponents around 1, so that the value also has more bits than float16 would keep in the small ones.
      const auto bfloat = static_cast<uint16_t>((random.next() & 0x8000) | 0x3000 | (random.next() & 0x0fff));
      bfloats[side].push_back(bfloat);
      from_bfloats[side].push_back(static_cast<float>(reference::bfloat_value(bfloat)));
    }
  }
  const support::CachePointer cache = support::make_cache(choice);
  const int64_t a = cache->new_sequence(), b = cache->new_sequence(), c = cache->new_sequence(),
                d = cache->new_sequence();
  cache->append_f16(a, 0, halves[0].data(), halves[1].data(), kTokens);
  cache->append(b, 0, from_halves[0].data(), from_halves[1].data(), kTokens);
  cache->append_bf16(c, 0, bfloats[0].data(), bfloats[1].data(), kTokens);
  cache->append(d, 0, from_bfloats[0].data(), from_bfloats[1].data(), kTokens);
  CHECK(snapshot(*cache, a, choice.layers[0]) == snapshot(*cache, b, choice.layers[0]));
  CHECK(snapshot(*cache, c, choice.layers[0]) == snapshot(*cache, d, choice.layers[0]));
}

TEST_CASE("append: NaN, infinity and what exceeds float16's range are refused, wherever they stand") {
  const support::CacheChoice choice = one_layer({"uniform", 4, {}}, {"uniform", 4, {}});
  const int row_size = choice.layers[0].row_size();
  const support::CachePointer cache = support::make_cache(choice);
  const int64_t id = cache->new_sequence();
  const auto good = support::float_rows(4, 150, row_size);
  cache->append(id, 0, good.data(), good.data(), 150);
  const Snapshot before = snapshot(*cache, id, choice.layers[0]);
  const int64_t bytes = support::stats_of(*cache)->bytes();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY, 32753.0f, -40000.0f}) {
    for (const int place : {0, row_size - 1, 150 * row_size - 1}) {
      for (const bool in_keys : {true, false}) {
        auto rows = good;
        rows[place] = bad;
        try {
          cache->append(id, 0, in_keys ? rows.data() : good.data(), in_keys ? good.data() : rows.data(), 150);
          FAIL_CHECK("accepted ", bad);
        } catch (const kvasir::Error& error) {
          CHECK(error.code() == kvasir::ErrorCode::kNotFinite);
        }
      }
    }
  }
  CHECK(snapshot(*cache, id, choice.layers[0]) == before);
  CHECK(support::stats_of(*cache)->bytes() == bytes);
  auto largest = good;
  largest[3] = 32752.0f;
  largest[4] = -32752.0f;
  cache->append(id, 0, largest.data(), good.data(), 150);
  CHECK(cache->length(id, 0) == 300);
}
