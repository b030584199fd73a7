// Attention through the public interface, against double precision over the rows that the cache reads back.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/formats.h"
#include "support/tolerance.h"

namespace {

using kvasir::Precision;

support::LayerChoice layer_of(const std::string& codec, int bits, int group, int head_dim = 32) {
  support::LayerChoice layer;
  layer.kv_heads = 2;
  layer.query_heads = 2 * group;
  layer.head_dim = head_dim;
  layer.keys = layer.values = {codec, bits, {}};
  return layer;
}

// A cache with one layer and sequences of the given lengths.
struct Scene {
  support::CacheChoice choice;
  support::CachePointer cache;
  std::vector<int64_t> ids;

  Scene(support::CacheChoice wanted, const std::vector<int>& lengths) : choice(std::move(wanted)) {
    cache = support::make_cache(choice);
    for (size_t i = 0; i < lengths.size(); ++i) {
      const auto& keys = support::half_rows(support::Profile::kNormal, 10 + i, lengths[i], layer().row_size());
      const auto& values = support::half_rows(support::Profile::kNormal, 50 + i, lengths[i], layer().row_size());
      ids.push_back(cache->new_sequence());
      cache->append(ids.back(), 0, keys.data(), values.data(), lengths[i]);
    }
  }
  const support::LayerChoice& layer() const { return choice.layers[0]; }
  double limit() const { return support::nmse_limit(choice.precision, layer().keys.codec == "f16"); }

  std::vector<float> attend(const std::vector<int64_t>& sequences, int tokens, const std::vector<float>& queries) {
    std::vector<float> outputs(queries.size(), -99.0f);
    cache->attend(0, sequences.data(), static_cast<int>(sequences.size()), tokens, queries.data(), outputs.data());
    return outputs;
  }

  // Attends and compares every sequence.
  void check(const std::vector<int64_t>& sequences, int tokens, const std::string& what) {
    const size_t size = static_cast<size_t>(tokens) * layer().query_size();
    const auto queries = support::float_rows(7, static_cast<int>(sequences.size()) * tokens, layer().query_size());
    const auto outputs = attend(sequences, tokens, queries);
    for (size_t i = 0; i < sequences.size(); ++i) {
      const double nmse = support::output_nmse(*cache, sequences[i], 0, layer(), queries.data() + i * size, tokens,
                                               outputs.data() + i * size);
      CHECK_MESSAGE(nmse <= limit(), what, ", sequence ", i, ": NMSE ", nmse);
    }
  }
};

support::CacheChoice one_layer(const support::LayerChoice& layer, const std::string& backend,
                               Precision precision = Precision::kExact) {
  support::CacheChoice choice;
  choice.layers = {layer};
  choice.backend = backend;
  choice.precision = precision;
  return choice;
}

const std::pair<const char*, int> kCodecs[] = {{"f16", 16}, {"uniform", 4}, {"uniform", 2}};

std::string text_of(const char* codec, int bits) { return codec + (" of " + std::to_string(bits)) + " bits"; }

}  // namespace

TEST_CASE("attention: split over any number of threads") {
  for (const std::string& backend : support::backend_names()) {
    for (const auto& [codec, bits] : kCodecs) {
      const std::string coded = text_of(codec, bits);
      for (const Precision precision : {Precision::kExact, Precision::kFast}) {
        Scene scene(one_layer(layer_of(codec, bits, 4, 64), backend, precision), {128 * 24 + 77});
        const auto queries = support::float_rows(7, 1, scene.layer().query_size());
        for (const int threads : {1, 2, 3, 8}) {
          const support::ThreadsGuard guard(threads);
          const auto outputs = scene.attend(scene.ids, 1, queries);
          const double nmse =
              support::output_nmse(*scene.cache, scene.ids[0], 0, scene.layer(), queries.data(), 1, outputs.data());
          CHECK_MESSAGE(nmse <= scene.limit(), backend, " ", coded, ", ", threads, " threads, ",
                        precision == Precision::kFast ? "fast" : "exact", ": NMSE ", nmse);
        }
      }
    }
  }
}

TEST_CASE("attention: what exact and fast promise, every codec and width on every backend") {
  // Trained codecs need codebooks: commvq_test.cc. Codecs for keys alone stand beside uniform values.
  int cases = 0;
  for (int codec = 0; codec < kvasir::codec_count(); ++codec) {
    if (kvasir::codec_is_trained(codec)) continue;
    for (int bits = 1; bits <= 16; ++bits) {
      if (!kvasir::codec_has_bits(codec, bits)) continue;
      support::LayerChoice layer = layer_of(kvasir::codec_name(codec), bits, 4, 128);
      if (!kvasir::codec_has_side(codec, kvasir::Side::kValues)) layer.values = {"uniform", 2, {}};
      for (const std::string& backend : support::backend_names()) {
        for (const Precision precision : {Precision::kExact, Precision::kFast}) {
          Scene scene(one_layer(layer, backend, precision), {128 * 3 + 40});
          const auto queries = support::float_rows(7, 2, layer.query_size());
          const auto outputs = scene.attend(scene.ids, 2, queries);
          const double got =
              support::output_nmse(*scene.cache, scene.ids[0], 0, layer, queries.data(), 2, outputs.data());
          CHECK_MESSAGE(got <= scene.limit(), backend, " ", layer.keys.codec, " ", bits, " bits, ",
                        precision == Precision::kFast ? "fast" : "exact", ": NMSE ", got);
          CHECK(support::stats_of(*scene.cache)->fallback_tiles() == 0);
          ++cases;
        }
      }
    }
  }
  CHECK(cases >= 2 * 15 * static_cast<int>(support::backend_names().size()));
}

TEST_CASE("attention: same threads, same bits") {
  for (const int threads : {1, 3}) {
    const support::ThreadsGuard guard(threads);
    Scene scene(one_layer(layer_of("uniform", 2, 4), "auto"), {128 * 30 + 77, 900});
    const auto queries = support::float_rows(3, 2, scene.layer().query_size());
    const auto first = scene.attend(scene.ids, 1, queries);
    for (int round = 0; round < support::repeat(20); ++round) {
      const auto again = scene.attend(scene.ids, 1, queries);
      REQUIRE(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("attention: sequences of different lengths in one call, some twice") {
  for (const std::string& backend : support::backend_names()) {
    for (const auto& [codec, bits] : kCodecs) {
      Scene scene(one_layer(layer_of(codec, bits, 2), backend), {1, 2, 127, 128, 129, 255, 640, 1000});
      scene.check(scene.ids, 1, backend + " ragged");
      std::vector<int64_t> repeated = scene.ids;
      repeated.push_back(scene.ids[4]);
      repeated.push_back(scene.ids[0]);
      std::reverse(repeated.begin(), repeated.end());
      scene.check(repeated, 1, backend + " repeated");
      // Alike in length, but not the same: nothing but the list tells them apart.
      Scene alike(one_layer(layer_of(codec, bits, 2), backend), {300, 300, 300});
      alike.check(alike.ids, 1, backend + " of one length");
    }
  }
}

TEST_CASE("attention: a batch gives each sequence what it gets alone") {
  // With one thread nothing is split, so the sums are the same sums.
  const support::ThreadsGuard guard(1);
  Scene scene(one_layer(layer_of("uniform", 4, 4), "auto"), {5, 300, 1000});
  const int size = scene.layer().query_size();
  const auto queries = support::float_rows(3, 3, size);
  const auto together = scene.attend(scene.ids, 1, queries);
  for (int i = 0; i < 3; ++i) {
    const auto alone = scene.attend({scene.ids[i]}, 1, {queries.begin() + i * size, queries.begin() + (i + 1) * size});
    CHECK(std::memcmp(alone.data(), together.data() + i * size, alone.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("attention: several query tokens see what stands before them") {
  for (const std::string& backend : support::backend_names()) {
    for (const auto& [codec, bits] : kCodecs) {
      for (const int group : {1, 4, 7}) {
        Scene scene(one_layer(layer_of(codec, bits, group), backend), {130, 300});
        // From two tokens to a whole prompt; more rows than one tile takes, and queries across page borders.
        for (const int tokens : {2, 5, 33, 130}) {
          if (support::kSanitized && tokens == 130 && group > 1) continue;
          scene.check(scene.ids, tokens,
                      backend + " " + std::to_string(tokens) + " tokens, group " + std::to_string(group));
        }
      }
    }
  }
}

TEST_CASE("attention: a later key never changes an earlier query") {
  Scene scene(one_layer(layer_of("uniform", 4, 2), "auto"), {300});
  const support::LayerChoice& layer = scene.layer();
  const auto queries = support::float_rows(3, 4, layer.query_size());
  const auto before = scene.attend(scene.ids, 4, queries);
  // Two more tokens, then the same four queries as the older of six: no page was sealed in between.
  const auto more = support::half_rows(support::Profile::kOutliers, 77, 2, layer.row_size());
  scene.cache->append(scene.ids[0], 0, more.data(), more.data(), 2);
  auto six = queries;
  six.resize(queries.size() + 2 * layer.query_size(), 0.25f);
  const auto after = scene.attend(scene.ids, 6, six);
  const std::vector<double> expected(before.begin(), before.end());
  CHECK(reference::nmse(after.data(), expected) <= support::between_two(support::kExactNmse));
}

TEST_CASE("attention: a sliding window sees the newest tokens and no others") {
  for (const std::string& backend : support::backend_names()) {
    for (const auto& [codec, bits] : kCodecs) {
      for (const int window : {1, 2, 127, 128, 129, 200, 500}) {
        support::LayerChoice layer = layer_of(codec, bits, 2);
        layer.sliding_window = window;
        Scene scene(one_layer(layer, backend), {1, 130, 600});
        for (const int tokens : {1, 3}) {
          for (const int64_t id : scene.ids) {
            if (scene.cache->length(id, 0) < tokens) continue;
            scene.check({id}, tokens, backend + " window " + std::to_string(window));
          }
        }
      }
    }
  }
}

TEST_CASE("attention: a long sliding-window sequence drops pages and stays right") {
  support::LayerChoice layer = layer_of("uniform", 4, 2);
  layer.sliding_window = 150;
  support::CacheChoice choice = one_layer(layer, "auto");
  choice.sinks = 3;
  Scene scene(choice, {1});
  const int64_t id = scene.ids[0];
  const auto queries = support::float_rows(3, 2, layer.query_size());
  support::Random random(5);
  int64_t most_pages = 0;
  while (scene.cache->length(id, 0) < 3000) {
    const int tokens = 2 + random.below(60);
    const auto rows = support::make_half_rows(support::Profile::kNormal, random.next(), tokens, layer.row_size());
    scene.cache->append(id, 0, rows.data(), rows.data(), tokens);
    const auto outputs = scene.attend({id}, 2, queries);
    const int64_t first = std::max<int64_t>(0, scene.cache->length(id, 0) - 151);
    const double nmse = support::output_nmse(*scene.cache, id, 0, layer, queries.data(), 2, outputs.data(), first);
    REQUIRE_MESSAGE(nmse <= support::kExactNmse, "length ", scene.cache->length(id, 0), ": NMSE ", nmse);
    most_pages = std::max(most_pages, scene.cache->page_count(id, 0));
  }
  // The window, a page to step back and the newest append: 150 + 128 + 61 tokens touch at most 4 pages, plus one that
  // is cut at either end.
  CHECK(most_pages <= 5);
}

TEST_CASE("attention: sinks and a 16-bit window longer than a page") {
  for (const std::string& backend : support::backend_names()) {
    for (const int sinks : {0, 1, 130, 300}) {
      for (const int window : {0, 128, 300}) {
        support::CacheChoice choice = one_layer(layer_of("uniform", 2, 4), backend);
        choice.sinks = sinks;
        choice.window = window;
        Scene scene(choice, {1, 129, 131, 290, 1000});
        scene.check(scene.ids, 1, backend + " sinks " + std::to_string(sinks) + " window " + std::to_string(window));
      }
    }
  }
}

TEST_CASE("attention: a query with what is no number gets no numbers, and its neighbours get theirs") {
  for (const kvasir::Backend* backend : support::available_backends()) {
    for (const auto& [codec, bits] : kCodecs) {
      const std::string coded = text_of(codec, bits);
      Scene scene(one_layer(layer_of(codec, bits, 4, 64), backend->name), {300});
      const auto good = support::float_rows(7, 1, scene.layer().query_size());
      const auto expected = scene.attend(scene.ids, 1, good);
      for (const float bad : {NAN, INFINITY}) {
        for (const int channels : {1, 64}) {
          auto queries = good;
          std::fill_n(queries.begin() + 64, channels, bad);
          const auto outputs = scene.attend(scene.ids, 1, queries);
          int wrong = 0;
          for (size_t i = 0; i < outputs.size(); ++i) {
            wrong += i / 64 == 1 ? !std::isnan(outputs[i]) : outputs[i] != expected[i];
          }
          CHECK_MESSAGE(wrong == 0, backend->name, " ", coded, ", ", channels, " channels are ", bad);
        }
      }
    }
  }
}

TEST_CASE("attention: scores that dwarf all others, at the start or at the end") {
  for (const std::string& backend : support::backend_names()) {
    for (const auto& [codec, bits] : kCodecs) {
      const std::string coded = text_of(codec, bits);
      for (const int strong : {0, 128, 1290}) {
        support::LayerChoice layer = layer_of(codec, bits, 2);
        layer.softmax_scale = 20.0f;  // differences of hundreds between scores
        Scene scene(one_layer(layer, backend), {});
        auto keys = support::half_rows(support::Profile::kNormal, 1, 1300, layer.row_size());
        const auto values = support::half_rows(support::Profile::kNormal, 2, 1300, layer.row_size());
        for (int c = 0; c < layer.row_size(); ++c) keys[strong * layer.row_size() + c] *= 1.5f;
        for (float& x : keys) x = support::round_to_half(x);
        scene.ids.push_back(scene.cache->new_sequence());
        scene.cache->append(scene.ids[0], 0, keys.data(), values.data(), 1300);
        const auto queries = support::float_rows(7, 1, layer.query_size(), 0.1);
        const auto outputs = scene.attend(scene.ids, 1, queries);
        const double nmse =
            support::output_nmse(*scene.cache, scene.ids[0], 0, layer, queries.data(), 1, outputs.data());
        // A score error e multiplies a weight by 1 + e, and errors grow with the scale: by 20 * sqrt(32) over the
        // default one, their square by 12800.
        constexpr double kSquared = 20.0 * 20.0 * 32.0;
        const double limit =
            codec == std::string("f16") ? kSquared * support::kFloatNmse : kSquared * support::kExactNmse;
        CHECK_MESSAGE(nmse <= limit, backend, " ", coded, ", token ", strong, ": NMSE ", nmse);
      }
    }
  }
}
