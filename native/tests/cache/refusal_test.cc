// Every wrong argument of the public interface: the right code, a text with the offending value, nothing changed.
#include <cmath>
#include <string>

#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"

using kvasir::ErrorCode;
using kvasir::Side;

namespace {

template <class Call>
void refuses(ErrorCode code, const std::string& mention, Call call) {
  try {
    call();
    FAIL_CHECK("accepted; expected ", kvasir::error_name(code), " mentioning ", mention);
  } catch (const kvasir::Error& error) {
    CHECK_MESSAGE(error.code() == code, error.what());
    CHECK_MESSAGE(std::string(error.what()).find(mention) != std::string::npos, error.what());
  }
}

support::ConfigPointer config_of(int layers) { return support::ConfigPointer(kvasir::CacheConfig::create(layers)); }

}  // namespace

TEST_CASE("config: numbers out of range") {
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  for (const int layers : {0, -1, 4097}) {
    refuses(kInvalid, std::to_string(layers), [&] { kvasir::CacheConfig::create(layers); });
  }
  const auto config = config_of(2);
  refuses(kInvalid, "2", [&] { config->set_heads(2, 8, 8, 64); });
  refuses(kInvalid, "-2", [&] { config->set_heads(-2, 8, 8, 64); });
  refuses(kInvalid, "0", [&] { config->set_heads(0, 0, 1, 64); });
  refuses(kInvalid, "7", [&] { config->set_heads(0, 7, 2, 64); });
  for (const int head_dim : {0, 16, 40, 272, 1 << 20}) {
    refuses(kInvalid, std::to_string(head_dim), [&] { config->set_heads(0, 8, 8, head_dim); });
  }
  refuses(kInvalid, "-1", [&] { config->set_sliding_window(0, -1); });
  for (const float scale : {0.0f, -1.0f, INFINITY, NAN}) {
    refuses(kInvalid, "scale", [&] { config->set_softmax_scale(0, scale); });
  }
  refuses(kInvalid, "65537", [&] { config->set_window(65537); });
  refuses(kInvalid, "-1", [&] { config->set_window(-1); });
  refuses(kInvalid, "4097", [&] { config->set_sinks(4097); });
  refuses(kInvalid, "-5", [&] { config->set_budget(-5); });
  refuses(kInvalid, "-5", [&] { config->set_layer_budget(0, -5); });
  refuses(kInvalid, "7", [&] { config->set_precision(static_cast<kvasir::Precision>(7)); });
  refuses(kInvalid, "null", [&] { config->set_backend(nullptr); });
  refuses(kInvalid, "null", [&] { config->set_codec(0, Side::kKeys, nullptr, 2); });
  refuses(kInvalid, "side", [&] { config->set_codec(0, static_cast<Side>(2), "f16", 16); });
}

TEST_CASE("config: what only create can see") {
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  const auto create = [](kvasir::CacheConfig& config) { support::CachePointer cache(kvasir::Cache::create(config)); };
  refuses(kInvalid, "heads", [&] { create(*config_of(1)); });
  const auto with = [&](const char* codec, int bits, const char* option, double value) {
    const auto config = config_of(1);
    config->set_heads(0, 4, 2, 64);
    config->set_codec(0, Side::kKeys, codec, bits);
    if (option != nullptr) config->set_option(0, Side::kKeys, option, value);
    create(*config);
  };
  with("uniform", 2, "group", 64.0);
  refuses(kInvalid, "zip", [&] { with("zip", 2, nullptr, 0); });
  refuses(kInvalid, "5", [&] { with("uniform", 5, nullptr, 0); });
  refuses(kInvalid, "4", [&] { with("f16", 4, nullptr, 0); });
  refuses(kInvalid, "0", [&] { with("uniform", 0, nullptr, 0); });
  refuses(kInvalid, "-1", [&] { with("uniform", -1, nullptr, 0); });
  refuses(kInvalid, "colour", [&] { with("uniform", 2, "colour", 1); });
  refuses(kInvalid, "group", [&] { with("f16", 16, "group", 32); });
  refuses(kInvalid, "group", [&] { with("uniform", 2, "group", 48); });
  refuses(kInvalid, "group", [&] { with("uniform", 2, "group", 32.5); });
  refuses(kInvalid, "axis", [&] { with("uniform", 2, "axis", 2); });
  refuses(kInvalid, "finite", [&] { with("uniform", 2, "axis", NAN); });
  const auto config = config_of(1);
  config->set_heads(0, 4, 2, 64);
  config->set_backend("abacus");
  refuses(kInvalid, "abacus", [&] { create(*config); });
  for (int i = 0; i < kvasir::backend_count(); ++i) {
    if (kvasir::backend_available(i)) continue;
    config->set_backend(kvasir::backend_name(i));
    refuses(ErrorCode::kUnavailable, kvasir::backend_name(i), [&] { create(*config); });
  }
}

TEST_CASE("cache: calls with wrong arguments") {
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  support::CacheChoice choice;
  choice.layers = {support::LayerChoice{}, support::LayerChoice{}};
  const support::CachePointer cache = support::make_cache(choice);
  const auto rows = support::float_rows(1, 150, choice.layers[0].row_size());
  std::vector<float> out(150 * choice.layers[0].query_size());
  const int64_t id = cache->new_sequence();
  cache->append(id, 0, rows.data(), rows.data(), 150);
  const int64_t bytes = support::stats_of(*cache)->bytes();

  for (const int layer : {-1, 2, INT32_MAX, INT32_MIN}) {
    const std::string text = std::to_string(layer);
    refuses(kInvalid, text, [&] { cache->append(id, layer, rows.data(), rows.data(), 1); });
    refuses(kInvalid, text, [&] { cache->attend(layer, &id, 1, 1, rows.data(), out.data()); });
    refuses(kInvalid, text, [&] { cache->length(id, layer); });
    refuses(kInvalid, text, [&] { cache->page_count(id, layer); });
    refuses(kInvalid, text, [&] { cache->read(id, layer, Side::kKeys, 0, 1, out.data()); });
  }
  for (const int64_t tokens : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    refuses(kInvalid, std::to_string(tokens), [&] { cache->append(id, 0, rows.data(), rows.data(), tokens); });
    refuses(kInvalid, "", [&] { cache->read(id, 0, Side::kKeys, 0, tokens, out.data()); });
  }
  refuses(kInvalid, "keys", [&] { cache->append(id, 0, nullptr, rows.data(), 1); });
  refuses(kInvalid, "values", [&] { cache->append(id, 0, rows.data(), nullptr, 1); });
  refuses(kInvalid, "queries", [&] { cache->attend(0, &id, 1, 1, nullptr, out.data()); });
  refuses(kInvalid, "outputs", [&] { cache->attend(0, &id, 1, 1, rows.data(), nullptr); });
  refuses(kInvalid, "sequences", [&] { cache->attend(0, nullptr, 1, 1, rows.data(), out.data()); });
  for (const int bad : {0, -1, INT32_MIN}) {
    refuses(kInvalid, std::to_string(bad), [&] { cache->attend(0, &id, bad, 1, rows.data(), out.data()); });
    refuses(kInvalid, std::to_string(bad), [&] { cache->attend(0, &id, 1, bad, rows.data(), out.data()); });
  }
  refuses(kInvalid, "151", [&] { cache->attend(0, &id, 1, 151, rows.data(), out.data()); });
  refuses(kInvalid, "0", [&] { cache->attend(1, &id, 1, 1, rows.data(), out.data()); });  // an empty layer
  for (const int64_t first : {int64_t{-1}, int64_t{150}, INT64_MAX, INT64_MIN}) {
    refuses(kInvalid, std::to_string(first), [&] { cache->read(id, 0, Side::kKeys, first, 1, out.data()); });
  }
  refuses(kInvalid, "", [&] { cache->read(id, 0, Side::kKeys, 100, 51, out.data()); });
  refuses(kInvalid, "side", [&] { cache->read(id, 0, static_cast<Side>(3), 0, 1, out.data()); });
  uint8_t byte = 0;
  for (const int64_t page : {int64_t{-1}, int64_t{1}, INT64_MAX}) {
    refuses(kInvalid, std::to_string(page), [&] { cache->read_page(id, 0, page, Side::kKeys, 0, &byte, 1); });
  }
  for (const int head : {-1, 2}) {
    refuses(kInvalid, std::to_string(head), [&] { cache->read_page(id, 0, 0, Side::kKeys, head, &byte, 1); });
  }
  CHECK(cache->read_page(id, 0, 0, Side::kKeys, 0, &byte, 1) == 256 * 32);  // too small: only the size
  CHECK(byte == 0);

  CHECK(cache->length(id, 0) == 150);
  CHECK(support::stats_of(*cache)->bytes() == bytes);
}

TEST_CASE("cache: ids that never were or no longer are") {
  support::CacheChoice choice;
  choice.layers = {support::LayerChoice{}};
  const support::CachePointer cache = support::make_cache(choice);
  const auto rows = support::float_rows(1, 4, choice.layers[0].query_size());
  std::vector<float> out(rows.size());
  const int64_t released = cache->new_sequence();
  cache->append(released, 0, rows.data(), rows.data(), 1);
  cache->release(released);
  CHECK(cache->new_sequence() != released);
  constexpr auto kUnknown = ErrorCode::kUnknownSequence;
  for (const int64_t id : {released, int64_t{0}, int64_t{-7}, INT64_MAX}) {
    const std::string text = std::to_string(id);
    refuses(kUnknown, text, [&] { cache->append(id, 0, rows.data(), rows.data(), 1); });
    refuses(kUnknown, text, [&] { cache->attend(0, &id, 1, 1, rows.data(), out.data()); });
    refuses(kUnknown, text, [&] { cache->fork(id); });
    refuses(kUnknown, text, [&] { cache->truncate(id, 0); });
    refuses(kUnknown, text, [&] { cache->release(id); });
    refuses(kUnknown, text, [&] { cache->length(id, 0); });
    refuses(kUnknown, text, [&] { cache->page_count(id, 0); });
    refuses(kUnknown, text, [&] { cache->read(id, 0, Side::kKeys, 0, 1, out.data()); });
  }
}
