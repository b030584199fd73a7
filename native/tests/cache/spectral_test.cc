// The spectral codec in a cache: what is set, what is refused, and what statistics say.
#include <cmath>
#include <map>

#include "base/half.h"
#include "kvasir/error.h"
#include "reference/spectral_page.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/spectral_basis.h"
#include "support/tolerance.h"

namespace {

using kvasir::Side;

constexpr int kHeads = 2, kGroup = 2, kDim = 64, kRow = kHeads * kDim;

support::ConfigPointer make_config(double key_bits, double value_bits) {
  support::ConfigPointer config(kvasir::CacheConfig::create(1));
  config->set_heads(0, kHeads * kGroup, kHeads, kDim);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    config->set_codec(0, side, "spectral", 2);
    config->set_option(0, side, "code_bits", side == Side::kKeys ? key_bits : value_bits);
  }
  return config;
}

std::vector<float> uneven_rows(uint64_t seed, int tokens) {
  std::vector<float> rows = support::make_half_rows(support::Profile::kNormal, seed, tokens, kRow);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = kvasir::half_to_float(kvasir::float_to_half(rows[i] * std::exp2(-static_cast<float>(i % kDim) / 8.0f)));
  }
  return rows;
}

}  // namespace

TEST_CASE("spectral: statistics count the widths that pages have, and their bytes once") {
  constexpr int kPages = 3;
  const support::ConfigPointer config = make_config(2.5, 1.25);
  support::add_bases(*config, 0, kHeads, kDim);
  const support::CachePointer cache(kvasir::Cache::create(*config));
  const int64_t id = cache->new_sequence();
  const auto rows = uneven_rows(1, 128 * kPages);
  cache->append(id, 0, rows.data(), rows.data(), 128 * kPages);
  REQUIRE(cache->page_count(id, 0) == kPages);
  const support::StatsPointer stats = support::stats_of(*cache);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const int tile_bits = side == Side::kKeys ? 20 : 10;
    const auto head_bytes = static_cast<int64_t>(reference::spectral_head_bytes(kDim, tile_bits));
    std::map<int, int64_t> channels;
    int64_t bits = 0;
    for (int64_t page = 0; page < kPages; ++page) {
      std::vector<uint8_t> part(static_cast<size_t>(cache->read_page(id, 0, page, side, 0, nullptr, 0)));
      REQUIRE(static_cast<int64_t>(part.size()) == kHeads * head_bytes);
      cache->read_page(id, 0, page, side, 0, part.data(), static_cast<int64_t>(part.size()));
      for (int h = 0; h < kHeads; ++h) {
        for (const int width :
             reference::read_spectral(part.data() + h * head_bytes, kDim, side == Side::kKeys).width) {
          ++channels[width];
          bits += width;
        }
      }
    }
    if (side == Side::kValues) CHECK(channels[0] > 0);
    for (const int width : {0, 1, 2, 4, 8}) CHECK(stats->channels(0, side, width) == channels[width]);
    CHECK(stats->code_bits(0, side) == doctest::Approx(static_cast<double>(bits) / (kPages * kRow)));
    CHECK(stats->side_bits_per_element(0, side) == doctest::Approx(8.0 * head_bytes / (128.0 * kDim)));
  }
  CHECK(stats->codebook_bytes(0) == 2 * 2 * kHeads * kDim * kDim);
}

TEST_CASE("spectral: what does not fit is refused, and says what it is") {
  const support::ConfigPointer config = make_config(2, 2);
  const auto vectors = support::basis_vectors(1, kHeads, kDim);
  const auto count = static_cast<int64_t>(vectors.size());
  CHECK_THROWS_WITH_AS(config->set_basis(0, Side::kKeys, vectors.data(), count - 1),
                       doctest::Contains("8192 elements, not 8191"), kvasir::Error);
  CHECK_THROWS_AS(config->set_basis(1, Side::kKeys, vectors.data(), count), kvasir::Error);
  CHECK_THROWS_AS(config->set_basis(0, Side::kKeys, nullptr, count), kvasir::Error);
  CHECK_THROWS_AS(config->set_basis(0, static_cast<Side>(2), vectors.data(), count), kvasir::Error);
  CHECK_THROWS_AS(config->set_basis(0, Side::kKeys, vectors.data(), -1), kvasir::Error);
  const std::vector<float> flat(vectors.size(), 1.0f);
  CHECK_THROWS_WITH_AS(config->set_basis(0, Side::kKeys, flat.data(), count), doctest::Contains("span"), kvasir::Error);
  for (const double bits : {0.0, -1.0, 8.5, std::nan("")}) {
    CHECK_THROWS_AS(kvasir::Cache::create(*make_config(bits, 2)), kvasir::Error);
  }
  // A basis for other heads than the layer then has.
  config->set_basis(0, Side::kKeys, vectors.data(), count);
  config->set_heads(0, kHeads, kHeads, kDim / 2);
  CHECK_THROWS_WITH_AS(kvasir::Cache::create(*config), doctest::Contains("the basis is for 2 kv heads of 64 channels"),
                       kvasir::Error);
  config->set_basis(0, Side::kKeys, nullptr, 0);
  CHECK(support::CachePointer(kvasir::Cache::create(*config)) != nullptr);
}

TEST_CASE("spectral: a basis that fits the rows stores them better than none") {
  // Rows of rank 8: all of them in 8 directions that no channel has for itself.
  constexpr int kRank = 8, kTokens = 256;
  const auto weights = support::float_rows(5, kTokens * kHeads, kRank);
  const auto directions = support::float_rows(6, kRank, kDim);
  std::vector<float> rows(static_cast<size_t>(kTokens) * kRow);
  for (int row = 0; row < kTokens * kHeads; ++row) {
    for (int c = 0; c < kDim; ++c) {
      for (int i = 0; i < kRank; ++i) {
        rows[static_cast<size_t>(row) * kDim + c] += weights[row * kRank + i] * directions[i * kDim + c];
      }
    }
  }
  // The directions, and channels for the rest.
  std::vector<float> vectors;
  for (int h = 0; h < kHeads; ++h) {
    vectors.insert(vectors.end(), directions.begin(), directions.end());
    for (int c = kRank; c < kDim; ++c) {
      for (int i = 0; i < kDim; ++i) vectors.push_back(i == c ? 1.0f : 0.0f);
    }
  }
  double errors[2];
  for (const bool with_basis : {false, true}) {
    const support::ConfigPointer config = make_config(1, 1);
    if (with_basis) config->set_basis(0, Side::kKeys, vectors.data(), static_cast<int64_t>(vectors.size()));
    const support::CachePointer cache(kvasir::Cache::create(*config));
    const int64_t id = cache->new_sequence();
    cache->append(id, 0, rows.data(), rows.data(), kTokens);
    std::vector<float> read(rows.size());
    cache->read(id, 0, Side::kKeys, 0, kTokens, read.data());
    double error = 0, size = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      error += (read[i] - rows[i]) * (read[i] - rows[i]);
      size += rows[i] * rows[i];
    }
    errors[with_basis] = error / size;
  }
  CHECK(errors[0] > 0.05);
  CHECK(errors[1] < 1e-4);  // one bit a channel is eight for each of the directions
}

TEST_CASE(
    "spectral: under a budget all pages give up as much, oldest first, and nothing changes once they are at the "
    "floor") {
  support::LayerChoice layer;
  layer.query_heads = kHeads * kGroup;
  layer.kv_heads = kHeads;
  layer.head_dim = kDim;
  layer.keys = {"spectral", 3, {{"code_bits", 3.0}, {"floor_bits", 1.0}}};
  layer.values = {"spectral", 2, {{"code_bits", 2.0}, {"floor_bits", 0.5}}};
  const auto page_bytes = [](int key_tiles, int value_tiles) {
    return static_cast<int64_t>(
        kHeads * (reference::spectral_head_bytes(kDim, key_tiles) + reference::spectral_head_bytes(kDim, value_tiles)));
  };
  constexpr int kPages = 9;  // of which five would fit as they are sealed
  support::CacheChoice choice;
  choice.layers = {layer};
  choice.budget = 5 * page_bytes(24, 16) + 1000;
  for (const std::string& backend : support::backend_names()) {
    choice.backend = backend;
    const support::CachePointer cache = support::make_cache(choice);
    const int64_t id = cache->new_sequence();
    const auto rows = uneven_rows(7, 128 * (kPages + 9));
    int pages = 0;
    const auto append = [&] {
      const float* next = rows.data() + static_cast<size_t>(pages) * 128 * kRow;
      cache->append(id, 0, next, next, 128);
      ++pages;
    };
    while (pages < kPages) append();
    const support::StatsPointer stats = support::stats_of(*cache);
    CHECK(stats->peak_bytes() <= choice.budget);
    CHECK(stats->bytes() > choice.budget - page_bytes(24, 16) / 2);  // precision was not given up for nothing
    CHECK(stats->shrinks(0) > kPages);
    int64_t last[2] = {};
    for (int64_t page = 0; page < kPages; ++page) {
      for (const Side side : {Side::kKeys, Side::kValues}) {
        const int64_t bytes = cache->read_page(id, 0, page, side, 0, nullptr, 0);
        int64_t& before = last[static_cast<int>(side)];
        const int64_t step = kHeads * 128;  // a bit of eight channels: 128 bytes a head
        if (page > 0) CHECK((bytes == before || bytes == before + step));
        before = bytes;
      }
    }
    const auto queries = support::float_rows(3, 1, kHeads * kGroup * kDim);
    std::vector<float> outputs(queries.size());
    cache->attend(0, &id, 1, 1, queries.data(), outputs.data());
    CHECK(support::output_nmse(*cache, id, 0, layer, queries.data(), 1, outputs.data()) <= support::kExactNmse);

    const int64_t most = choice.budget / page_bytes(8, 4);  // at their floors
    REQUIRE(most < kPages + 9);
    while (pages < most) append();
    const auto read = support::read_rows(*cache, id, 0, layer, Side::kKeys, 0, 128 * most);
    CHECK_THROWS_AS(append(), kvasir::Error);
    CHECK(support::read_rows(*cache, id, 0, layer, Side::kKeys, 0, cache->length(id, 0)) == read);
  }
}
