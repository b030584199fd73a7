// Which backend is taken where nothing names one, and what levels of one instruction set owe each other.
#include <cstdlib>
#include <string>
#include <vector>

#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/formats.h"

namespace {

// What one query token gets from a layer of random rows.
std::vector<float> outputs_of(const std::string& backend, const support::LayerChoice& layer,
                              kvasir::Precision precision) {
  constexpr int kTokens = 2 * kvasir::kPageTokens + 5;
  support::CacheChoice choice;
  choice.layers = {layer};
  choice.backend = backend;
  choice.precision = precision;
  const support::CachePointer cache = support::make_cache(choice);
  const auto keys = support::float_rows(1, kTokens, layer.row_size());
  const auto values = support::float_rows(2, kTokens, layer.row_size());
  const auto query = support::float_rows(3, 1, layer.query_size());
  std::vector<float> outputs(layer.query_size());
  const int64_t id = cache->new_sequence();
  cache->append(id, 0, keys.data(), values.data(), kTokens);
  cache->attend(0, &id, 1, 1, query.data(), outputs.data());
  return outputs;
}

}  // namespace

TEST_CASE("backends: the default level is the best that this machine can run") {
  if (std::getenv("KVASIR_BACKEND") != nullptr) return;  // then it is that one
  const std::string chosen = kvasir::backend_at(kvasir::backend_index("auto")).name;
  CHECK(chosen == support::available_backends().front()->name);
  // Whoever knows the machine, as an emulator's caller does, says what it must be.
  if (const char* expected = std::getenv("KVASIR_TEST_BACKEND")) CHECK(chosen == expected);
}

TEST_CASE("backends: the levels of AArch64 agree to the bit") {
  std::vector<std::string> levels;
  for (const kvasir::Backend* backend : support::available_backends()) {
    if (std::string(backend->name).rfind("neon", 0) == 0) levels.push_back(backend->name);
  }
  for (int group = 1; levels.size() > 1 && group <= 5; ++group) {
    for (const int bits : {1, 2, 3, 4, 8, 16}) {
      for (const auto precision : {kvasir::Precision::kExact, kvasir::Precision::kFast}) {
        support::LayerChoice layer;
        layer.kv_heads = 1;
        layer.query_heads = group;
        layer.head_dim = 80;
        layer.keys.codec = layer.values.codec = "uniform";
        layer.keys.bits = layer.values.bits = bits;
        const std::vector<float> expected = outputs_of(levels[0], layer, precision);
        for (size_t i = 1; i < levels.size(); ++i) {
          CHECK_MESSAGE(outputs_of(levels[i], layer, precision) == expected, levels[i], " and ", levels[0], ", ", bits,
                        " bits, ", group, " query heads");
        }
      }
    }
  }
}
