// Chunks of query tokens through the public interface, on pages of every family: few of them, which fused kernels take
// one by one, and many, for which pages are decoded. Against the definition over the rows that the cache reads back.
#include <cuda_runtime_api.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "engine/twin_caches.h"
#include "kvasir/kvasir.h"
#include "reference/attention.h"
#include "support/tolerance.h"

namespace {

using kvasir::Cache;
using kvasir::CacheConfig;
using kvasir::Side;
using twin_caches::CachePointer;
using twin_caches::ConfigPointer;

constexpr int kKvHeads = 2, kGroup = 2;

struct Setting {
  const char* keys;
  int key_bits;
  const char* values;
  int value_bits;
  int head_dim;
  int sliding_window = 0;
  kvasir::Precision precision = kvasir::Precision::kExact;

  double limit() const {
    const bool halves = std::string(keys) == "f16" && std::string(values) == "f16";
    return support::nmse_limit(precision, halves);
  }
};

std::vector<float> random_numbers(unsigned seed, size_t count) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

void check_chunks(const Setting& s) {
  const ConfigPointer config(CacheConfig::create(1));
  config->set_heads(0, kKvHeads * kGroup, kKvHeads, s.head_dim);
  config->set_codec(0, Side::kKeys, s.keys, s.key_bits);
  config->set_codec(0, Side::kValues, s.values, s.value_bits);
  if (s.sliding_window > 0) config->set_sliding_window(0, s.sliding_window);
  config->set_precision(s.precision);
  config->set_window(70);
  config->set_sinks(5);
  config->set_backend("cuda");
  const CachePointer cache(Cache::create(*config));
  const int row = kKvHeads * s.head_dim, query = kGroup * row;
  std::vector<int64_t> ids;
  for (const int64_t length : {72, 133, 400}) {
    ids.push_back(cache->new_sequence());
    const auto keys = random_numbers(static_cast<unsigned>(length), static_cast<size_t>(length * row));
    const auto values = random_numbers(static_cast<unsigned>(length + 1), keys.size());
    cache->append(ids.back(), 0, keys.data(), values.data(), length);
  }
  for (const int tokens : {2, 64, 65, 72}) {
    const size_t size = static_cast<size_t>(tokens) * query;
    const auto queries = random_numbers(99, ids.size() * size);
    std::vector<float> outputs(queries.size(), -99.0f);
    cache->attend(0, ids.data(), static_cast<int>(ids.size()), tokens, queries.data(), outputs.data());
    for (size_t i = 0; i < ids.size(); ++i) {
      const int64_t length = cache->length(ids[i], 0);
      int64_t first = 0;
      if (s.sliding_window > 0) first = std::max<int64_t>(0, length - tokens + 1 - s.sliding_window);
      std::vector<float> rows[2];
      for (Side side : {Side::kKeys, Side::kValues}) {
        auto& to = rows[static_cast<int>(side)];
        to.resize(static_cast<size_t>((length - first) * row));
        cache->read(ids[i], 0, side, first, length - first, to.data());
      }
      const auto expected =
          reference::attention({kKvHeads * kGroup, kKvHeads, s.head_dim, s.sliding_window}, rows[0].data(),
                               rows[1].data(), first, length, queries.data() + i * size, tokens);
      const double error = reference::nmse(outputs.data() + i * size, expected);
      CHECK(error <= s.limit(), s.keys << " " << s.key_bits << ", " << s.values << " " << s.value_bits
                                       << ", d=" << s.head_dim << ", sliding " << s.sliding_window << ", " << tokens
                                       << " tokens, sequence " << i << ": NMSE " << error);
    }
  }
}

DEVICE_CASE("prompt through a cache: pages of every family") {
  for (const int d : {48, 64, 128}) {
    check_chunks({"f16", 16, "f16", 16, d});
    for (const int bits : {1, 2, 8}) check_chunks({"uniform", bits, "uniform", bits, d});
    for (const int bits : {2, 16}) check_chunks({"progressive", bits, "progressive", bits, d});
    check_chunks({"pattern", 2, "pattern", 2, d});
    check_chunks({"tiered", 2, "uniform", 2, d});
    check_chunks({"f16", 16, "uniform", 4, d});
    check_chunks({"uniform", 2, "uniform", 2, d, 0, kvasir::Precision::kFast});
  }
}

DEVICE_CASE("prompt through a cache: the largest heads") {
  check_chunks({"uniform", 2, "uniform", 2, 256});
  check_chunks({"tiered", 2, "uniform", 2, 256});
}

// With 64 query heads, 1024 tokens go together. Some of them are compared, each with what a cache of its length gives.
DEVICE_CASE("prompt through a cache: more query rows than go together") {
  constexpr int kHeads = 64, kDim = 64, kRow = kKvHeads * kDim, kTokens = 1100, kLength = 1300;
  const ConfigPointer config(CacheConfig::create(1));
  config->set_heads(0, kHeads, kKvHeads, kDim);
  for (Side side : {Side::kKeys, Side::kValues}) config->set_codec(0, side, "uniform", 4);
  config->set_backend("cuda");
  const CachePointer cache(Cache::create(*config));
  const int64_t id = cache->new_sequence();
  const auto keys = random_numbers(1, kLength * kRow), values = random_numbers(2, keys.size());
  cache->append(id, 0, keys.data(), values.data(), kLength);
  const auto queries = random_numbers(3, kTokens * kHeads * kDim);
  std::vector<float> outputs(queries.size(), -99.0f), rows[2];
  cache->attend(0, &id, 1, kTokens, queries.data(), outputs.data());
  for (Side side : {Side::kKeys, Side::kValues}) {
    rows[static_cast<int>(side)].resize(keys.size());
    cache->read(id, 0, side, 0, kLength, rows[static_cast<int>(side)].data());
  }
  for (const int token : {0, 55, 56, 1023, 1024, 1095, 1096, 1099}) {
    const size_t at = static_cast<size_t>(token) * kHeads * kDim;
    const auto expected = reference::attention({kHeads, kKvHeads, kDim}, rows[0].data(), rows[1].data(), 0,
                                               kLength - kTokens + token + 1, queries.data() + at, 1);
    const double error = reference::nmse(outputs.data() + at, expected);
    CHECK(error <= support::kExactNmse, "token " << token << ": NMSE " << error);
  }
}

DEVICE_CASE("prompt through a cache: sliding windows") {
  for (const int d : {48, 128}) {
    for (const int window : {1, 20, 130, 300}) {
      check_chunks({"f16", 16, "f16", 16, d, window});
      check_chunks({"uniform", 2, "uniform", 2, d, window});
    }
  }
}

}  // namespace
