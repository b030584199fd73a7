// 16-bit rows in blocks: what sequences and forks take, to the byte, and that nobody sees what another one writes.
#include <thread>

#include "reference/half.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/errors.h"
#include "support/every_codec.h"

namespace {

using kvasir::ErrorCode;

support::LayerChoice layer_of(const std::string& codec, int bits, int heads, int head_dim) {
  support::LayerChoice layer;
  layer.query_heads = layer.kv_heads = heads;
  layer.head_dim = head_dim;
  layer.keys = layer.values = {codec, bits, {}};
  return layer;
}

support::CacheChoice cache_of(int layers, const support::LayerChoice& layer, const std::string& backend = "auto") {
  support::CacheChoice choice;
  choice.layers.assign(static_cast<size_t>(layers), layer);
  choice.backend = backend;
  return choice;
}

// 16 tokens, two sides, two bytes.
int64_t block_bytes(const support::LayerChoice& layer) { return int64_t{16} * 2 * 2 * layer.row_size(); }

int64_t bytes_of(kvasir::Cache& cache) { return support::stats_of(cache)->bytes(); }

// Appends the same new rows to every layer.
void append(kvasir::Cache& cache, int64_t id, const support::CacheChoice& choice, int tokens, uint64_t seed = 1) {
  for (int i = 0; i < static_cast<int>(choice.layers.size()); ++i) {
    const auto rows = support::make_half_rows(support::Profile::kNormal, seed + i, tokens, choice.layers[i].row_size());
    cache.append(id, i, rows.data(), rows.data(), tokens);
  }
}

std::vector<float> keys_of(kvasir::Cache& cache, int64_t id, const support::LayerChoice& layer) {
  return support::read_rows(cache, id, 0, layer, kvasir::Side::kKeys, 0, cache.length(id, 0));
}

float as_half(float x) { return static_cast<float>(reference::half_value(reference::half_nearest(x))); }

}  // namespace

TEST_CASE("row blocks: what a token and a fork take at the geometry of Llama 3.1 8B") {
  for (const std::string& backend : support::backend_names()) {
    for (const int window : {0, 128}) {
      for (const int sinks : {0, 4}) {
        support::CacheChoice choice = cache_of(32, layer_of("uniform", 2, 8, 128), backend);
        choice.window = window;
        choice.sinks = sinks;
        const auto cache = support::make_cache(choice);
        const int64_t id = cache->new_sequence();
        CHECK(bytes_of(*cache) == 0);
        append(*cache, id, choice, 1);
        const int64_t one = bytes_of(*cache);
        CHECK(one == 32 * block_bytes(choice.layers[0]));
        CHECK(one <= 2200000);
        const int64_t fork = cache->fork(id);
        CHECK(bytes_of(*cache) == one);
        append(*cache, fork, choice, 1);
        CHECK(bytes_of(*cache) == 2 * one);
        append(*cache, id, choice, 1);  // which nobody else holds any more
        CHECK(bytes_of(*cache) == 2 * one);
      }
    }
  }
}

TEST_CASE("row blocks: a fork of a long sequence takes one block a layer, whoever writes first") {
  for (const bool original_first : {true, false}) {
    support::CacheChoice choice = cache_of(2, layer_of("uniform", 4, 2, 64));
    choice.window = 300;
    choice.sinks = 20;
    const auto cache = support::make_cache(choice);
    const int64_t id = cache->new_sequence();
    append(*cache, id, choice, 1000);
    const int64_t alone = bytes_of(*cache);
    const int64_t fork = cache->fork(id);
    CHECK(bytes_of(*cache) == alone);
    const auto before = keys_of(*cache, id, choice.layers[0]);
    append(*cache, original_first ? id : fork, choice, 1, 7);
    CHECK(bytes_of(*cache) == alone + 2 * block_bytes(choice.layers[0]));
    CHECK(keys_of(*cache, original_first ? fork : id, choice.layers[0]) == before);
    append(*cache, original_first ? fork : id, choice, 1, 8);
    CHECK(bytes_of(*cache) == alone + 2 * block_bytes(choice.layers[0]));
    cache->release(id);
    cache->release(fork);
    CHECK(bytes_of(*cache) == 0);
  }
}

TEST_CASE("row blocks: forks that go different ways see their own rows, sinks included") {
  for (const std::string& backend : support::backend_names()) {
    for (const int length : {1, 5, 15, 16, 17, 40, 127, 130, 300}) {
      support::CacheChoice choice = cache_of(1, layer_of("f16", 16, 2, 32), backend);
      choice.window = 20;
      choice.sinks = 7;
      const auto cache = support::make_cache(choice);
      const support::LayerChoice& layer = choice.layers[0];
      const auto rows = support::make_half_rows(support::Profile::kNormal, 3, 600, layer.row_size());
      std::vector<int64_t> ids = {cache->new_sequence()};
      cache->append(ids[0], 0, rows.data(), rows.data(), length);
      for (int i = 0; i < 3; ++i) ids.push_back(cache->fork(ids[static_cast<size_t>(i) / 2]));
      std::vector<std::vector<float>> expected;
      for (size_t i = 0; i < ids.size(); ++i) {
        const int tokens = 3 + 50 * static_cast<int>(i);
        const auto more = support::make_half_rows(support::Profile::kNormal, 40 + i, tokens, layer.row_size());
        cache->append(ids[i], 0, more.data(), more.data(), tokens);
        expected.emplace_back(rows.begin(), rows.begin() + length * layer.row_size());
        expected.back().insert(expected.back().end(), more.begin(), more.end());
      }
      for (size_t i = 0; i < ids.size(); ++i) {
        CHECK_MESSAGE(keys_of(*cache, ids[i], layer) == expected[i], backend, ", length ", length, ", fork ", i);
      }
    }
  }
}

TEST_CASE("row blocks: ten thousand short sequences fit where they should, and not one more") {
  support::CacheChoice choice = cache_of(1, layer_of("uniform", 2, 1, 32));
  const support::LayerChoice& layer = choice.layers[0];
  constexpr int kSequences = 10000;
  choice.budget = kSequences * block_bytes(layer);
  const auto cache = support::make_cache(choice);
  const auto rows = support::make_half_rows(support::Profile::kNormal, 5, 16, layer.row_size());
  std::vector<int64_t> ids;
  for (int i = 0; i < kSequences; ++i) {
    ids.push_back(cache->new_sequence());
    cache->append(ids.back(), 0, rows.data(), rows.data(), 1 + i % 16);
  }
  CHECK(bytes_of(*cache) == choice.budget);
  const int64_t late = cache->new_sequence();
  const auto one_more = [&] { cache->append(late, 0, rows.data(), rows.data(), 1); };
  support::error_of(ErrorCode::kBudgetExceeded, one_more);
  CHECK(cache->length(late, 0) == 0);
  // Forks share, until they write.
  const int64_t fork = cache->fork(ids[0]);
  support::error_of(ErrorCode::kBudgetExceeded, [&] { cache->append(fork, 0, rows.data(), rows.data(), 1); });
  CHECK(cache->length(fork, 0) == 1);
  CHECK(keys_of(*cache, fork, layer) == std::vector<float>(rows.begin(), rows.begin() + layer.row_size()));
  cache->release(ids[1]);
  one_more();
  CHECK(bytes_of(*cache) == choice.budget);
}

TEST_CASE("row blocks: a cut through a page takes blocks whatever the budget, and appends pay for it") {
  support::CacheChoice choice = cache_of(2, layer_of("uniform", 2, 2, 64));
  const support::LayerChoice& layer = choice.layers[0];
  const auto unlimited = support::make_cache(choice);
  append(*unlimited, unlimited->new_sequence(), choice, 256);
  const int64_t whole = bytes_of(*unlimited);  // two sealed pages a layer, no 16-bit rows
  for (const bool by_layer : {false, true}) {
    for (const bool forked : {false, true}) {
      for (const int length : {129, 144, 145, 255}) {
        choice.budget = by_layer ? 0 : whole;
        for (auto& each : choice.layers) each.budget = by_layer ? whole / 2 : 0;
        const auto cache = support::make_cache(choice);
        const int64_t id = cache->new_sequence();
        append(*cache, id, choice, 256);
        const auto before = keys_of(*cache, id, layer);
        const int64_t fork = forked ? cache->fork(id) : 0;
        cache->truncate(id, length);
        const int64_t blocks = 2 * ((length - 128 + 15) / 16) * block_bytes(layer);
        const int64_t held = (forked ? whole : whole / 2) + blocks;  // the page that goes makes room, if no fork has it
        CHECK(bytes_of(*cache) == held);
        auto kept = before;
        kept.resize(static_cast<size_t>(length) * layer.row_size());
        for (size_t i = 128u * layer.row_size(); i < kept.size(); ++i) kept[i] = as_half(kept[i]);
        CHECK(keys_of(*cache, id, layer) == kept);
        if (forked) CHECK(keys_of(*cache, fork, layer) == before);
        // Whoever needs more waits until the budget holds it; tokens that fit their block need none.
        const int64_t late = cache->new_sequence();
        const auto one_more = [&] { cache->append(late, 0, kept.data(), kept.data(), 1); };
        if (held + block_bytes(layer) > whole) support::error_of(ErrorCode::kBudgetExceeded, one_more);
        CHECK(cache->length(late, 0) == 0);
        if (length % 16 != 0 && length % 16 != 15) append(*cache, id, choice, 1);
        CHECK(bytes_of(*cache) == held);
        if (forked) continue;
        // A page that is sealed gives back more than it takes.
        if (length == 255) append(*cache, id, choice, 1);
        cache->truncate(id, length == 255 ? 256 : 128);
        CHECK(bytes_of(*cache) == (length == 255 ? whole : whole / 2));
      }
    }
  }
}

TEST_CASE("row blocks: a budget full of windows still lets them be sealed") {
  support::CacheChoice choice = cache_of(1, layer_of("uniform", 2, 2, 64));
  const support::LayerChoice& layer = choice.layers[0];
  choice.budget = 3 * 8 * block_bytes(layer);
  const auto cache = support::make_cache(choice);
  std::vector<int64_t> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(cache->new_sequence());
    append(*cache, ids.back(), choice, 127, 10 + i);
  }
  CHECK(bytes_of(*cache) == choice.budget);
  for (const int64_t id : ids) {
    append(*cache, id, choice, 1);
    CHECK(cache->page_count(id, 0) == 1);
  }
  CHECK(bytes_of(*cache) < choice.budget / 4);
  CHECK(support::stats_of(*cache)->peak_bytes() == choice.budget);
}

TEST_CASE("row blocks: a cut into a window that nobody shares needs no memory") {
  support::CacheChoice choice = cache_of(1, layer_of("uniform", 2, 2, 64));
  choice.window = 128;
  const auto cache = support::make_cache(choice);
  const int64_t id = cache->new_sequence();
  append(*cache, id, choice, 300);
  const int64_t before = bytes_of(*cache);
  cache->truncate(id, 100);  // the window's blocks take the page's rows
  CHECK(bytes_of(*cache) == 7 * block_bytes(choice.layers[0]));
  CHECK(support::stats_of(*cache)->peak_bytes() == before);
}

TEST_CASE("row blocks: threads that write to forks of one sequence") {
  support::CacheChoice choice = cache_of(1, layer_of("f16", 16, 2, 32));
  const support::LayerChoice& layer = choice.layers[0];
  const auto cache = support::make_cache(choice);
  const auto rows = support::make_half_rows(support::Profile::kNormal, 3, 40, layer.row_size());
  for (int round = 0; round < support::repeat(20); ++round) {
    std::vector<int64_t> ids = {cache->new_sequence()};
    cache->append(ids[0], 0, rows.data(), rows.data(), 21);
    for (int i = 0; i < 3; ++i) ids.push_back(cache->fork(ids[0]));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ids.size(); ++i) {
      threads.emplace_back([&, i] {
        const size_t first = i * static_cast<size_t>(layer.row_size());
        for (int t = 0; t < 30; ++t) cache->append(ids[i], 0, rows.data() + first, rows.data() + first, 1);
      });
    }
    for (auto& thread : threads) thread.join();
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto got = keys_of(*cache, ids[i], layer);
      std::vector<float> expected(rows.begin(), rows.begin() + 21 * layer.row_size());
      for (int t = 0; t < 30; ++t) {
        const auto row = rows.begin() + static_cast<int64_t>(i) * layer.row_size();
        expected.insert(expected.end(), row, row + layer.row_size());
      }
      CHECK_MESSAGE(got == expected, "round ", round, ", fork ", i);
      cache->release(ids[i]);
    }
  }
  CHECK(bytes_of(*cache) == 0);
}

TEST_CASE("a sequence of one token takes a block of rows in each layer, whatever the codec, and its fork nothing") {
  using support::EveryCodec;
  constexpr int64_t kBlock = int64_t{kvasir::kRowBlockTokens} * 2 * EveryCodec::kRow * 2;
  static_assert(int64_t{32} * kvasir::kRowBlockTokens * 2 * 8 * 128 * 2 <= 2'200'000, "32 layers, 8 kv heads of 128");
  const auto row = support::float_rows(3, 1, EveryCodec::kRow);
  for (const std::string& codec : EveryCodec::names()) {
    for (const std::string& backend : support::backend_names()) {
      CAPTURE(codec);
      CAPTURE(backend);
      const support::ConfigPointer config = EveryCodec::config(codec);
      config->set_backend(backend.c_str());
      const support::CachePointer cache(kvasir::Cache::create(*config));
      const int64_t id = cache->new_sequence();
      const auto append = [&](int64_t to) {
        for (int layer = 0; layer < EveryCodec::kLayers; ++layer) cache->append(to, layer, row.data(), row.data(), 1);
      };
      append(id);
      CHECK(support::stats_of(*cache)->bytes() == EveryCodec::kLayers * kBlock);
      const int64_t fork = cache->fork(id);
      CHECK(support::stats_of(*cache)->bytes() == EveryCodec::kLayers * kBlock);
      append(fork);
      CHECK(support::stats_of(*cache)->bytes() == 2 * EveryCodec::kLayers * kBlock);
    }
  }
}
