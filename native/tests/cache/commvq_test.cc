// CommVQ in the cache: pages are what the codebooks say, attention is that of the decoded rows turned by RoPE, and
// positions move without a trace in the codes.
#include "reference/commvq.h"

#include <cmath>
#include <cstring>
#include <memory>

#include "support/caches.h"
#include "support/commvq_scene.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/tolerance.h"

using kvasir::KeyCodebook;
using kvasir::RopePairs;
using kvasir::Side;
using kvasir::ValueCodebook;

namespace {

struct Shape {
  int kv_heads, group, head_dim;
  RopePairs pairs;
  int entries;
  int bits;
  int window = 0, sinks = 0;

  int stages() const {
    const int index_bits = entries == 64 ? 6 : entries == 32 ? 5 : 4;
    return std::max(1, static_cast<int>(std::lround(static_cast<double>(bits) * head_dim / (2 * index_bits))));
  }
  int width() const { return kv_heads * head_dim; }
  int query_width() const { return width() * group; }
};

// Codebooks of random vectors: attention must be right whatever they are.
support::Owned<KeyCodebook> random_keys(const Shape& shape, uint64_t seed) {
  const size_t floats = static_cast<size_t>(shape.kv_heads) * shape.stages() * shape.entries * shape.head_dim;
  std::vector<float> tables(floats);
  support::Random random(seed);
  for (float& x : tables) x = static_cast<float>(0.3 * random.normal());
  return support::Owned<KeyCodebook>(
      KeyCodebook::create(shape.kv_heads, shape.head_dim, shape.pairs, shape.stages(), shape.entries, tables.data()));
}

support::Owned<ValueCodebook> random_values(const Shape& shape, uint64_t seed) {
  const int codes = shape.bits * shape.width();
  std::vector<float> table(static_cast<size_t>(codes) * shape.width());
  support::Random random(seed);
  for (float& x : table) x = static_cast<float>(0.1 * random.normal());
  return support::Owned<ValueCodebook>(ValueCodebook::create(shape.width(), codes, table.data(), nullptr));
}

std::vector<double> frequencies_of(int head_dim) {
  std::vector<double> frequencies(head_dim / 2);
  kvasir::rope_frequencies(10000.0, head_dim, frequencies.data());
  return frequencies;
}

support::CachePointer make_cache(const Shape& shape, const char* backend, const KeyCodebook* keys,
                                 const ValueCodebook* values, double magnitude = 1.0,
                                 kvasir::Precision precision = kvasir::Precision::kExact) {
  const support::ConfigPointer config(kvasir::CacheConfig::create(1));
  config->set_heads(0, shape.kv_heads * shape.group, shape.kv_heads, shape.head_dim);
  const auto frequencies = frequencies_of(shape.head_dim);
  config->set_rope(0, shape.pairs, frequencies.data(), shape.head_dim / 2, magnitude);
  if (keys) config->set_codec(0, Side::kKeys, "commvq", shape.bits);
  if (values) config->set_codec(0, Side::kValues, "commvq", shape.bits);
  if (keys) config->set_key_codebook(0, *keys, 1);
  if (values) config->set_value_codebook(0, *values);
  config->set_window(shape.window);
  config->set_sinks(shape.sinks);
  config->set_backend(backend);
  config->set_precision(precision);
  return support::CachePointer(kvasir::Cache::create(*config));
}

// rows ([tokens][heads][head_dim]) after RoPE at these positions, in double and rounded once.
std::vector<float> turned(std::vector<float> rows, const Shape& shape, const std::vector<int64_t>& positions,
                          double magnitude) {
  const auto frequencies = frequencies_of(shape.head_dim);
  const bool halves = shape.pairs == RopePairs::kHalves;
  const int half = shape.head_dim / 2;
  const size_t width = rows.size() / positions.size();
  for (size_t t = 0; t < positions.size(); ++t) {
    for (size_t head = 0; head < width / shape.head_dim; ++head) {
      float* row = rows.data() + t * width + head * shape.head_dim;
      for (int j = 0; j < half; ++j) {
        float& re = row[halves ? j : 2 * j];
        float& im = row[halves ? j + half : 2 * j + 1];
        const std::complex<double> out =
            std::complex<double>(re, im) * std::polar(magnitude, static_cast<double>(positions[t]) * frequencies[j]);
        re = static_cast<float>(out.real());
        im = static_cast<float>(out.imag());
      }
    }
  }
  return rows;
}

std::vector<int64_t> counted(int64_t tokens) {
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) positions[static_cast<size_t>(t)] = t;
  return positions;
}

std::vector<float> read_all(kvasir::Cache& cache, int64_t id, const Shape& shape, Side side) {
  std::vector<float> rows(static_cast<size_t>(cache.length(id, 0)) * shape.width());
  cache.read(id, 0, side, 0, cache.length(id, 0), rows.data());
  return rows;
}

// NMSE of attention against double precision over what the cache reads back, turned to these positions.
double attend_error(kvasir::Cache& cache, int64_t id, const Shape& shape, const std::vector<int64_t>& positions,
                    int tokens, double magnitude = 1.0) {
  const auto queries = support::float_rows(99, tokens, shape.query_width());
  std::vector<float> outputs(queries.size());
  cache.attend(0, &id, 1, tokens, queries.data(), outputs.data());
  const auto keys = turned(read_all(cache, id, shape, Side::kKeys), shape, positions, magnitude);
  const auto values = read_all(cache, id, shape, Side::kValues);
  const reference::AttentionShape attention = {shape.kv_heads * shape.group, shape.kv_heads, shape.head_dim};
  return reference::nmse(outputs.data(),
                         reference::attention(attention, keys.data(), values.data(), 0,
                                              static_cast<int64_t>(positions.size()), queries.data(), tokens));
}

std::vector<float> data(const Shape& shape, int tokens, uint64_t draw) {
  return support::correlated_rows(3, draw, tokens, shape.width());
}

}  // namespace

TEST_CASE("commvq: attention on every backend, shape, width and number of queries") {
  const Shape shapes[] = {
      {1, 1, 32, RopePairs::kHalves, 64, 1},         {2, 4, 48, RopePairs::kNeighbours, 32, 2, 0, 3},
      {3, 2, 64, RopePairs::kHalves, 16, 1, 40, 1},  {2, 3, 80, RopePairs::kHalves, 64, 2},
      {2, 8, 128, RopePairs::kNeighbours, 64, 1, 5}, {1, 2, 256, RopePairs::kHalves, 64, 1},
  };
  support::Sampler sampler;
  for (const Shape& shape : shapes) {
    const auto keys = random_keys(shape, 1);
    const auto values = random_values(shape, 2);
    const int tokens = 300 + shape.window;
    const auto k = data(shape, tokens, 5), v = data(shape, tokens, 6);
    for (const std::string& backend : support::backend_names()) {
      for (const auto precision : {kvasir::Precision::kExact, kvasir::Precision::kFast}) {
        if (sampler.skip()) continue;
        const auto cache = make_cache(shape, backend.c_str(), keys.get(), values.get(), 1.0, precision);
        const int64_t id = cache->new_sequence();
        cache->append(id, 0, k.data(), v.data(), tokens);
        REQUIRE(cache->page_count(id, 0) == 2);
        CHECK(support::stats_of(*cache)->fallback_tiles() == 0);
        for (const int count : {1, 5, 40}) {
          const double error = attend_error(*cache, id, shape, counted(tokens), count);
          CHECK_MESSAGE(error <= support::nmse_limit(precision, false), backend, ", d=", shape.head_dim, ", ", count,
                        " queries: ", error);
        }
      }
    }
  }
}

TEST_CASE("commvq: keys at the ends of what sums of their tables can reach") {
  // All entries of a channel are equal, so every key is the largest sum there is: a sum kept in too few bits would
  // wrap.
  for (const Shape& shape : {Shape{1, 2, 64, RopePairs::kHalves, 64, 2}, Shape{2, 1, 48, RopePairs::kHalves, 16, 1}}) {
    const size_t vectors = static_cast<size_t>(shape.kv_heads) * shape.stages() * shape.entries;
    std::vector<float> tables(vectors * shape.head_dim);
    for (size_t i = 0; i < tables.size(); ++i) {
      const int channel = static_cast<int>(i) % shape.head_dim;
      // Real and imaginary part of opposite signs: z + i z does not cancel in the real part.
      tables[i] = (channel < shape.head_dim / 2 ? 0.01f : -0.01f) * static_cast<float>(1 + channel % 7);
    }
    const support::Owned<KeyCodebook> keys(
        KeyCodebook::create(shape.kv_heads, shape.head_dim, shape.pairs, shape.stages(), shape.entries, tables.data()));
    const auto values = random_values(shape, 13);
    const auto k = data(shape, 256, 15), v = data(shape, 256, 16);
    for (const std::string& backend : support::backend_names()) {
      const auto cache = make_cache(shape, backend.c_str(), keys.get(), values.get());
      const int64_t id = cache->new_sequence();
      cache->append(id, 0, k.data(), v.data(), 256);
      const double error = attend_error(*cache, id, shape, counted(256), 3);
      CHECK_MESSAGE(error <= support::kExactNmse, backend, ": ", error);
    }
  }
}

TEST_CASE("commvq: pages hold what the codebooks make of the rows, for all backends the same") {
  const Shape shape = {2, 2, 64, RopePairs::kHalves, 64, 1};
  const auto keys = random_keys(shape, 3);
  const auto values = random_values(shape, 4);
  const auto k = data(shape, 256, 7), v = data(shape, 256, 8);
  std::vector<uint8_t> codes(static_cast<size_t>(keys->code_bytes(128))), bits(values->bit_bytes(128));
  std::vector<uint16_t> norms(128), gains(128);
  keys->encode(k.data(), 128, 1, codes.data(), norms.data());
  values->encode(v.data(), 128, bits.data(), gains.data());
  std::vector<float> key_rows(128 * shape.width()), value_rows(128 * shape.width());
  keys->decode(codes.data(), norms.data(), 128, key_rows.data());
  values->decode(bits.data(), gains.data(), 128, value_rows.data());
  for (const std::string& backend : support::backend_names()) {
    const auto cache = make_cache(shape, backend.c_str(), keys.get(), values.get());
    const int64_t id = cache->new_sequence();
    cache->append(id, 0, k.data(), v.data(), 256);
    std::vector<uint8_t> page(static_cast<size_t>(cache->read_page(id, 0, 0, Side::kKeys, 0, nullptr, 0)));
    cache->read_page(id, 0, 0, Side::kKeys, 1, page.data(), static_cast<int64_t>(page.size()));
    // Norms, the codes of both heads, and padding to 64 bytes.
    CHECK(std::memcmp(page.data(), norms.data(), 256) == 0);
    CHECK(std::memcmp(page.data() + 256, codes.data(), codes.size()) == 0);
    CHECK(page.size() == (256 + codes.size() + 63) / 64 * 64);
    page.resize(static_cast<size_t>(cache->read_page(id, 0, 0, Side::kValues, 0, nullptr, 0)));
    cache->read_page(id, 0, 0, Side::kValues, 0, page.data(), static_cast<int64_t>(page.size()));
    CHECK(std::memcmp(page.data(), gains.data(), 256) == 0);
    CHECK(page.size() == 256 + bits.size());
    for (int t = 0; t < 128; ++t) {
      for (int n = 0; n < values->codes(); ++n) {
        // A plane of one bit: 16 codes and 32 tokens in a vector.
        const size_t byte = 256 + 64 * (static_cast<size_t>(n / 16) * 4 + t / 32) + 4 * (n % 16) + t % 4;
        const int got = page[byte] >> (t % 32 / 4) & 1;
        const int want = bits[static_cast<size_t>(t) * values->codes() / 8 + n / 8] >> (n % 8) & 1;
        if (got != want) FAIL("token ", t, ", code ", n);
      }
    }
    std::vector<float> rows(128 * shape.width());
    cache->read(id, 0, Side::kKeys, 0, 128, rows.data());
    CHECK(rows == key_rows);
    cache->read(id, 0, Side::kValues, 0, 128, rows.data());
    CHECK(rows == value_rows);
  }
}

TEST_CASE("commvq: shifted attention is that of a cache built at the shifted positions") {
  const Shape shape = {2, 2, 64, RopePairs::kHalves, 64, 2, 10, 2};
  const auto keys = random_keys(shape, 5);
  const auto values = random_values(shape, 6);
  const int tokens = 420;
  const auto k = data(shape, tokens, 9), v = data(shape, tokens, 10);
  for (const bool trained : {true, false}) {  // "f16" can do it too
    const auto cache = make_cache(shape, "auto", trained ? keys.get() : nullptr, trained ? values.get() : nullptr);
    const int64_t id = cache->new_sequence();
    cache->append(id, 0, k.data(), v.data(), tokens);
    const auto page = [&] {
      std::vector<uint8_t> bytes(static_cast<size_t>(cache->read_page(id, 0, 1, Side::kKeys, 0, nullptr, 0)));
      cache->read_page(id, 0, 1, Side::kKeys, 0, bytes.data(), static_cast<int64_t>(bytes.size()));
      return bytes;
    };
    const double limit = trained ? support::kExactNmse : support::kFloatNmse;
    const auto before = page();
    std::vector<int64_t> positions = counted(tokens);
    const auto move = [&](int64_t first, int64_t offset) {
      cache->shift(id, first, offset);
      for (size_t t = static_cast<size_t>(first); t < positions.size(); ++t) positions[t] += offset;
      const double error = attend_error(*cache, id, shape, positions, 3);
      CHECK_MESSAGE(error <= limit, "from ", first, " by ", offset, ": ", error);
    };
    move(0, 1000);      // all of it
    move(200, -57);     // a tail that begins inside a page
    move(200, 7);       // again
    move(100, 3);       // before another move
    move(415, 100000);  // inside the window
    move(1, -2000);     // below 0
    move(0, 1000000);   // far
    CHECK(page() == before);
    // A fork keeps the positions, a cut forgets those beyond it, and what is appended goes on from the last.
    const int64_t fork = cache->fork(id);
    CHECK(attend_error(*cache, fork, shape, positions, 1) <= limit);
    cache->truncate(fork, 300);
    positions.resize(300);
    CHECK(attend_error(*cache, fork, shape, positions, 1) <= limit);
    cache->append(fork, 0, k.data(), v.data(), 20);
    for (int i = 0; i < 20; ++i) positions.push_back(positions.back() + 1);
    CHECK(attend_error(*cache, fork, shape, positions, 20) <= limit);
  }
}

TEST_CASE("commvq: YaRN's magnitude multiplies keys once") {
  const Shape shape = {1, 2, 64, RopePairs::kHalves, 64, 2};
  const auto keys = random_keys(shape, 7);
  const auto values = random_values(shape, 8);
  const auto k = data(shape, 300, 11), v = data(shape, 300, 12);
  const auto cache = make_cache(shape, "auto", keys.get(), values.get(), 1.2);
  const int64_t id = cache->new_sequence();
  cache->append(id, 0, k.data(), v.data(), 300);
  CHECK(attend_error(*cache, id, shape, counted(300), 2, 1.2) <= support::kExactNmse);
}

TEST_CASE("commvq: keys or values alone, beside another codec") {
  const Shape shape = {2, 2, 64, RopePairs::kHalves, 64, 1};
  const auto keys = random_keys(shape, 9);
  const auto values = random_values(shape, 10);
  const auto k = data(shape, 300, 13), v = data(shape, 300, 14);
  for (const bool trained_keys : {true, false}) {
    const auto cache =
        make_cache(shape, "auto", trained_keys ? keys.get() : nullptr, trained_keys ? nullptr : values.get());
    const int64_t id = cache->new_sequence();
    cache->append(id, 0, k.data(), v.data(), 300);
    CHECK(attend_error(*cache, id, shape, counted(300), 2) <= support::kExactNmse);
    cache->truncate(id, 200);
    CHECK(attend_error(*cache, id, shape, counted(200), 2) <= support::kExactNmse);
  }
}

TEST_CASE("commvq: stats count codebooks once, beside the cache") {
  const Shape shape = {2, 2, 64, RopePairs::kHalves, 64, 1};
  const auto keys = random_keys(shape, 21), other = random_keys(shape, 22);
  const auto values = random_values(shape, 23);
  const int64_t key_bytes = 2 * shape.kv_heads * shape.stages() * shape.entries * shape.head_dim;
  const int64_t value_bytes = 2 * values->codes() * shape.width();
  // Layers 0 and 1 share both codebooks, 2 has keys of its own and 16-bit values, 3 is not trained at all.
  const support::ConfigPointer config(kvasir::CacheConfig::create(4));
  config->set_heads(kvasir::kAllLayers, shape.kv_heads * shape.group, shape.kv_heads, shape.head_dim);
  const auto frequencies = frequencies_of(shape.head_dim);
  config->set_rope(kvasir::kAllLayers, shape.pairs, frequencies.data(), shape.head_dim / 2, 1.0);
  for (const int layer : {0, 1, 2}) {
    config->set_codec(layer, Side::kKeys, "commvq", 1);
    config->set_key_codebook(layer, layer < 2 ? *keys : *other, 0);
    if (layer == 2) continue;
    config->set_codec(layer, Side::kValues, "commvq", 1);
    config->set_value_codebook(layer, *values);
  }
  const support::CachePointer cache(kvasir::Cache::create(*config));
  CHECK(support::stats_of(*cache)->codebook_bytes(kvasir::kAllLayers) == 2 * key_bytes + value_bytes);
  CHECK(support::stats_of(*cache)->bytes() == 0);
  CHECK(support::stats_of(*cache)->bits_per_element_with_codebooks(kvasir::kAllLayers) == 0.0);  // of no element
  const auto k = data(shape, 300, 17), v = data(shape, 300, 18);
  for (int sequences = 1; sequences <= 2; ++sequences) {
    const int64_t id = cache->new_sequence();
    for (int layer = 0; layer < 4; ++layer) cache->append(id, layer, k.data(), v.data(), 300);
    const support::StatsPointer stats = support::stats_of(*cache);
    const int64_t want[] = {key_bytes + value_bytes, key_bytes + value_bytes, key_bytes, 0};
    for (int layer = 0; layer < 4; ++layer) {
      CHECK(stats->codebook_bytes(layer) == want[layer]);
      const double elements = 2.0 * sequences * 300 * shape.width();
      CHECK(stats->bits_per_element_with_codebooks(layer) ==
            doctest::Approx(stats->bits_per_element(layer) + 8.0 * want[layer] / elements));
    }
    CHECK(stats->codebook_bytes(kvasir::kAllLayers) == 2 * key_bytes + value_bytes);
    CHECK(stats->bytes() == stats->page_bytes(kvasir::kAllLayers) + stats->window_bytes(kvasir::kAllLayers));
  }
}

TEST_CASE("commvq: what does not fit is refused") {
  const Shape shape = {2, 2, 64, RopePairs::kHalves, 64, 1};
  const Shape other = {2, 2, 32, RopePairs::kHalves, 64, 1};
  const Shape interleaved = {2, 2, 64, RopePairs::kNeighbours, 64, 1};
  const Shape wide = {2, 2, 64, RopePairs::kHalves, 64, 2};
  const auto keys = random_keys(shape, 11);
  const auto values = random_values(shape, 12);
  make_cache(shape, "auto", keys.get(), values.get());
  CHECK_THROWS_AS(make_cache(shape, "auto", random_keys(other, 1).get(), values.get()), kvasir::Error);
  CHECK_THROWS_AS(make_cache(shape, "auto", random_keys(interleaved, 1).get(), values.get()), kvasir::Error);
  CHECK_THROWS_AS(make_cache(shape, "auto", random_keys(wide, 1).get(), values.get()), kvasir::Error);
  CHECK_THROWS_AS(make_cache(shape, "auto", keys.get(), random_values(other, 1).get()), kvasir::Error);
  CHECK_THROWS_AS(make_cache(shape, "auto", keys.get(), random_values(wide, 1).get()), kvasir::Error);

  const support::ConfigPointer config(kvasir::CacheConfig::create(1));
  config->set_heads(0, 4, 2, 64);
  config->set_codec(0, Side::kKeys, "commvq", 1);
  const auto create = [&] { support::CachePointer(kvasir::Cache::create(*config)); };
  CHECK_THROWS_AS(create(), kvasir::Error);  // no codebook
  config->set_key_codebook(0, *keys, 0);
  CHECK_THROWS_AS(create(), kvasir::Error);  // no RoPE
  const auto frequencies = frequencies_of(64);
  config->set_rope(0, RopePairs::kHalves, frequencies.data(), 31, 1.0);
  CHECK_THROWS_AS(create(), kvasir::Error);
  config->set_rope(0, RopePairs::kHalves, frequencies.data(), 32, 1.0);
  create();
  config->set_codec(0, Side::kKeys, "uniform", 2);
  CHECK_THROWS_AS(create(), kvasir::Error);  // cannot turn
  CHECK_THROWS_AS(config->set_rope(0, RopePairs::kHalves, frequencies.data(), 32, 0.0), kvasir::Error);

  support::CacheChoice plain;
  plain.layers = {support::LayerChoice{}};
  const auto cache = support::make_cache(plain);
  const int64_t id = cache->new_sequence();
  CHECK_THROWS_AS(cache->shift(id, 0, 5), kvasir::Error);  // keys after RoPE
}
