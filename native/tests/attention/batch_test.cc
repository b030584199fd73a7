// All that one call of attention can do, for every codec on every backend, against double precision: ragged batches,
// log-sums, soft caps, learned sinks, masks, layers that share keys and values, any type and any strides.
#include <cmath>
#include <limits>

#include "reference/half.h"
#include "support/attend_scene.h"
#include "support/effort.h"
#include "support/errors.h"

namespace {

using kvasir::AttendBatch;
using kvasir::ElementType;
using support::AttendChoice;
using support::AttendQueries;
using support::AttendScene;
using support::Manner;

// verb(choice) for every codec on every backend, in three shapes; where little is wanted, as in emulators, for some of
// them.
template <class Verb>
void for_each_choice(const Verb& verb) {
  support::Sampler sampler;
  for (int codec = 0; codec < kvasir::codec_count(); ++codec) {
    for (const std::string& backend : support::backend_names()) {
      for (const auto& [head_dim, group] : {std::pair(64, 2), std::pair(48, 3), std::pair(128, 5)}) {
        if (support::kSanitized ? head_dim != 48 || backend == "scalar" : sampler.skip()) continue;  // slow
        AttendChoice choice;
        choice.codec = kvasir::codec_name(codec);
        choice.backend = backend;
        choice.head_dim = head_dim;
        choice.group = group;
        verb(choice);
      }
    }
  }
}

std::vector<float> queries_for(const AttendScene& scene, const AttendQueries& wanted, uint64_t seed) {
  return support::float_rows(seed, wanted.rows(), scene.choice().query_size());
}

// Any sequences of the scene, some twice, with single tokens beside chunks.
AttendQueries random_queries(AttendScene& scene, const std::vector<int64_t>& ids, support::Random& random) {
  AttendQueries wanted;
  const int count = 1 + random.below(6);
  for (int i = 0; i < count; ++i) {
    wanted.ids.push_back(ids[static_cast<size_t>(random.below(static_cast<int>(ids.size())))]);
    const int most = static_cast<int>(std::min<int64_t>(scene.cache().length(wanted.ids.back(), 0), 100));
    wanted.tokens.push_back(random.chance(0.6) ? 1 : 1 + random.below(most));
  }
  return wanted;
}

// Gives the sequences that can have one a tree of guesses: each token has a parent among those before it, or none.
void plant_trees(AttendQueries& wanted, support::Random& random) {
  wanted.masks.clear();
  for (const int tokens : wanted.tokens) {
    const size_t first = wanted.masks.size();
    for (int t = 0; t < tokens; ++t) {
      if (tokens > kvasir::kMaxMaskedTokens) {
        wanted.masks.push_back(0);
        continue;
      }
      const int parent = random.below(t + 1) - 1;
      const uint64_t ancestors = parent < 0 ? 0 : wanted.masks[first + static_cast<size_t>(parent)];
      wanted.masks.push_back(ancestors | uint64_t{1} << t);
    }
  }
}

// Ways of attending, one for each of the three shapes, so that every codec meets every one of them on every backend.
struct Manners {
  Manner own, shared;
};
const Manners kManners[] = {
    {{0, 0.0f, false}, {0, 2.5f, true}}, {{0, 2.5f, true}, {90, 0.0f, true}}, {{200, 4.0f, false}, {180, 4.0f, true}}};

}  // namespace

TEST_CASE("batch: ragged queries, caps, sinks and windows, for every codec on every backend") {
  int turn = 0;
  for_each_choice([&](AttendChoice choice) {
    choice.own = kManners[turn % 3].own;
    choice.shared = kManners[turn % 3].shared;
    ++turn;
    AttendScene scene(choice);
    support::Random random(support::seed() + static_cast<uint64_t>(turn));
    std::vector<int64_t> ids;
    for (const int length : {1, 60, 128 + 4 + 70, 500, 2 * 128 + 90}) ids.push_back(scene.add(length, random.next()));
    for (int round = 0; round < support::repeat(2); ++round) {
      AttendQueries wanted = random_queries(scene, ids, random);
      const auto queries = queries_for(scene, wanted, random.next());
      const std::string what = "round " + std::to_string(round) + ", seed " + std::to_string(support::seed());
      for (const int layer : {0, 1}) scene.check(layer, wanted, queries, what);
    }
  });
}

TEST_CASE("batch: trees of guesses see their ancestors, for every codec on every backend") {
  int turn = 0;
  for_each_choice([&](AttendChoice choice) {
    choice.own = kManners[turn % 3].shared;
    choice.shared = choice.own;
    if (choice.own.sliding_window > 0) choice.shared.sliding_window = 5;  // shorter than a tree is deep
    ++turn;
    AttendScene scene(choice);
    support::Random random(support::seed() + 77 + static_cast<uint64_t>(turn));
    std::vector<int64_t> ids;
    for (const int length : {3, 64, 128 + 4 + 70, 450}) ids.push_back(scene.add(length, random.next()));
    for (int round = 0; round < support::repeat(2); ++round) {
      AttendQueries wanted = random_queries(scene, ids, random);
      plant_trees(wanted, random);
      if (round % 2 == 1) {
        for (const uint64_t mask : wanted.masks) wanted.depths.push_back(__builtin_popcountll(mask | 1) % 60);
      }
      const auto queries = queries_for(scene, wanted, random.next());
      for (const int layer : {0, 1}) scene.check(layer, wanted, queries, "trees, round " + std::to_string(round));
    }
  });
}

TEST_CASE("batch: a chain of guesses is what a chunk is") {
  for_each_choice([&](AttendChoice choice) {
    if (choice.head_dim != 64) return;
    AttendScene scene(choice);
    const int64_t id = scene.add(300, 5);
    AttendQueries wanted{{id}, {40}, {}, {}};
    const auto queries = queries_for(scene, wanted, 9);
    scene.check(0, wanted, queries, "chunk");
    for (int t = 0; t < 40; ++t) wanted.masks.push_back((uint64_t{2} << t) - 1);
    scene.check(0, wanted, queries, "chain");
  });
}

TEST_CASE("batch: two caches that share the tokens give what one with all of them gives") {
  for (const std::string& backend : support::backend_names()) {
    AttendChoice choice;
    choice.codec = "f16";
    choice.backend = backend;
    choice.own.sinks = true;
    choice.own.soft_cap = 3.0f;
    choice.shared = choice.own;
    AttendScene whole(choice), first(choice), second(choice);
    const int width = choice.row_size();
    const auto keys = support::make_half_rows(support::Profile::kNormal, 1, 400, width);
    const auto values = support::make_half_rows(support::Profile::kNormal, 2, 400, width);
    const int64_t all = whole.cache().new_sequence(), old = first.cache().new_sequence(),
                  late = second.cache().new_sequence();
    whole.cache().append(all, 0, keys.data(), values.data(), 400);
    first.cache().append(old, 0, keys.data(), values.data(), 250);
    second.cache().append(late, 0, keys.data() + 250 * width, values.data() + 250 * width, 150);
    const auto queries = support::float_rows(3, 1, choice.query_size());
    const auto attend = [&](AttendScene& scene, int64_t id, bool sinks, std::vector<float>& log_sums) {
      std::vector<float> outputs(queries.size());
      log_sums.resize(static_cast<size_t>(choice.query_heads()));
      AttendBatch batch;
      batch.sequences = &id;
      batch.count = 1;
      batch.queries.data = queries.data();
      batch.outputs.data = outputs.data();
      batch.log_sums = log_sums.data();
      batch.learned_sinks = sinks;
      scene.cache().attend(batch);
      return outputs;
    };
    std::vector<float> all_sums, old_sums, late_sums;
    const auto expected = attend(whole, all, true, all_sums);
    auto outputs = attend(first, old, false, old_sums);
    const auto others = attend(second, late, true, late_sums);
    kvasir::merge_attention({outputs.data()}, old_sums.data(), {others.data()}, late_sums.data(), 1,
                            choice.query_heads(), choice.head_dim);
    const std::vector<double> wanted(expected.begin(), expected.end());
    CHECK(reference::nmse(outputs.data(), wanted) <= support::between_two(support::kFloatNmse));
    for (size_t h = 0; h < all_sums.size(); ++h) CHECK(std::fabs(old_sums[h] - all_sums[h]) <= 2e-5);
    // With the sinks in both they would count twice.
    const auto again = attend(first, old, true, old_sums);
    CHECK(std::fabs(old_sums[1] - late_sums[1]) < 100.0f);
    CHECK(again != outputs);
  }
}

TEST_CASE("batch: any type, any strides, heads first, for every codec on every backend") {
  constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBFloat16};
  const auto bits_of = [](float x, ElementType type) -> uint32_t {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (type == ElementType::kFloat32) return bits;
    if (type == ElementType::kFloat16) return reference::half_nearest(x);
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  };
  for_each_choice([&](const AttendChoice& choice) {
    if (choice.head_dim != 64 && !(support::kSanitized && choice.head_dim == 48)) return;
    AttendScene scene(choice);
    const AttendQueries wanted{{scene.add(300, 1), scene.add(40, 2)}, {3, 1}, {}, {}};
    const int rows = wanted.rows(), heads = choice.query_heads(), d = choice.head_dim;
    // Numbers that all three types hold.
    auto queries = queries_for(scene, wanted, 4);
    for (float& x : queries) x = std::round(x * 16.0f) / 16.0f;
    std::vector<float> expected(queries.size());
    AttendBatch plain = scene.batch(0, wanted);
    plain.queries.data = queries.data();
    plain.outputs.data = expected.data();
    scene.cache().attend(plain);
    const struct {
      int64_t token_stride, head_stride;
    } layouts[] = {{heads * d, d}, {d, rows * d}, {heads * d + 8, d}, {2 * d, 2 * rows * d}};
    for (const ElementType in : kTypes) {
      for (const ElementType out : kTypes) {
        for (const auto& layout : layouts) {
          const int64_t token_stride = layout.token_stride, head_stride = layout.head_stride;
          const size_t size = static_cast<size_t>((rows - 1) * token_stride + (heads - 1) * head_stride + d);
          const int in_bytes = in == ElementType::kFloat32 ? 4 : 2, out_bytes = out == ElementType::kFloat32 ? 4 : 2;
          std::vector<uint8_t> from(size * in_bytes, 0x7F), to(size * out_bytes, 0x5A);
          const auto at = [&](size_t i) {
            return (i / d / heads) * token_stride + (i / d % heads) * head_stride + i % d;
          };
          for (size_t i = 0; i < queries.size(); ++i) {
            const uint32_t bits = bits_of(queries[i], in);
            std::memcpy(from.data() + at(i) * in_bytes, &bits, in_bytes);
          }
          auto must = to;
          for (size_t i = 0; i < queries.size(); ++i) {
            const uint32_t bits = bits_of(expected[i], out);
            std::memcpy(must.data() + at(i) * out_bytes, &bits, out_bytes);
          }
          AttendBatch batch = scene.batch(0, wanted);
          batch.queries = {from.data(), in, token_stride, head_stride};
          batch.outputs = {to.data(), out, token_stride, head_stride};
          scene.cache().attend(batch);
          CHECK_MESSAGE(to == must, choice.text(), " from ", static_cast<int>(in), " to ", static_cast<int>(out),
                        ", strides ", token_stride, " and ", head_stride);
        }
      }
    }
  });
}

TEST_CASE("batch: merging counts what either saw, and nothing where neither did") {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float outputs[] = {1, 2, 3, 4, 5, 6}, sums[] = {0.0f, kNone, kNone};
  const float others[] = {3, 6, 7, 8, 9, 9}, other_sums[] = {std::log(3.0f), 2.0f, kNone};
  kvasir::merge_attention({outputs}, sums, {others}, other_sums, 3, 1, 2);
  CHECK(outputs[0] == doctest::Approx(2.5));
  CHECK(outputs[1] == doctest::Approx(5.0));
  CHECK(sums[0] == doctest::Approx(std::log(4.0)));
  CHECK(outputs[2] == 7.0f);
  CHECK(sums[1] == 2.0f);
  CHECK(outputs[4] == 5.0f);
  CHECK(sums[2] == kNone);
  // Others leave 0 / 0 where nothing was seen.
  float half_seen[] = {NAN, NAN, 3, 4}, half_sums[] = {kNone, 1.0f};
  const float rest[] = {5, 6, NAN, NAN}, rest_sums[] = {2.0f, kNone};
  kvasir::merge_attention({half_seen}, half_sums, {rest}, rest_sums, 2, 1, 2);
  CHECK(std::vector<float>(half_seen, half_seen + 4) == std::vector<float>{5, 6, 3, 4});
  CHECK(std::vector<float>(half_sums, half_sums + 2) == std::vector<float>{2, 1});
  const auto bad = [&](int64_t tokens, int heads, int d, const float* log_sums) {
    support::error_of(kvasir::ErrorCode::kInvalidArgument,
                      [&] { kvasir::merge_attention({outputs}, sums, {others}, log_sums, tokens, heads, d); });
  };
  bad(0, 1, 2, other_sums);
  bad(3, 0, 2, other_sums);
  bad(3, 1, 0, other_sums);
  bad(3, 1, 2, nullptr);
}

TEST_CASE("batch: what is refused is refused before anything is written") {
  AttendChoice choice;
  choice.codec = "uniform";
  choice.backend = "auto";
  AttendScene scene(choice);
  const AttendQueries wanted{{scene.add(100, 1), scene.add(10, 2)}, {3, 1}, {}, {}};
  const auto queries = queries_for(scene, wanted, 4);
  const std::vector<float> untouched(queries.size(), -7.0f);
  std::vector<float> outputs = untouched;
  const auto refuse = [&](const auto& change) {
    AttendBatch batch = scene.batch(0, wanted);
    batch.queries.data = queries.data();
    batch.outputs.data = outputs.data();
    change(batch);
    const std::string text =
        support::error_of(kvasir::ErrorCode::kInvalidArgument, [&] { scene.cache().attend(batch); });
    CHECK(outputs == untouched);
    return text;
  };
  refuse([](AttendBatch& b) { b.layer = 2; });
  refuse([](AttendBatch& b) { b.count = 0; });
  refuse([](AttendBatch& b) { b.sequences = nullptr; });
  refuse([](AttendBatch& b) { b.queries.data = nullptr; });
  refuse([](AttendBatch& b) { b.outputs.data = nullptr; });
  refuse([](AttendBatch& b) { b.queries.type = static_cast<ElementType>(9); });
  refuse([](AttendBatch& b) { b.outputs.head_stride = 5; });
  const int none[] = {3, 0}, many[] = {3, 11};
  refuse([&](AttendBatch& b) { b.tokens = none; });
  CHECK(refuse([&](AttendBatch& b) { b.tokens = many; }).find("fewer than the 11") != std::string::npos);
  const uint64_t itself[] = {1, 1, 5, 1}, beyond[] = {1, 3, 12, 1}, good[] = {1, 3, 5, 1};
  CHECK(refuse([&](AttendBatch& b) { b.masks = itself; }).find("hides the token itself") != std::string::npos);
  CHECK(refuse([&](AttendBatch& b) { b.masks = beyond; }).find("that there are not") != std::string::npos);
  const int depths[] = {0, 1, 64, 0};
  refuse([&](AttendBatch& b) {
    b.masks = good;
    b.depths = depths;
  });
  refuse([&](AttendBatch& b) { b.depths = depths; });
  const std::vector<uint64_t> wide(66, 1);
  const int chunk[] = {65, 1};
  refuse([&](AttendBatch& b) {
    b.tokens = chunk;
    b.masks = wide.data();
  });
}

TEST_CASE("batch: a layer that takes its keys and values from another one") {
  AttendChoice choice;
  choice.codec = "uniform";
  choice.backend = "auto";
  AttendScene scene(choice);
  const int64_t id = scene.add(300, 1);
  CHECK(scene.cache().length(id, 1) == 300);
  CHECK(scene.cache().page_count(id, 1) == scene.cache().page_count(id, 0));
  const auto rows = support::make_half_rows(support::Profile::kNormal, 1, 1, choice.row_size());
  const std::string text = support::error_of(kvasir::ErrorCode::kInvalidArgument,
                                             [&] { scene.cache().append(id, 1, rows.data(), rows.data(), 1); });
  CHECK(text.find("takes keys and values from layer 0") != std::string::npos);
  CHECK(support::stats_of(scene.cache())->layer_bytes(1) == 0);
  const int64_t copy = scene.cache().fork(id);
  scene.cache().truncate(copy, 20);
  CHECK(scene.cache().length(copy, 1) == 20);
  CHECK(scene.cache().length(id, 1) == 300);

  const auto refuse = [](const auto& change) {
    const support::ConfigPointer config(kvasir::CacheConfig::create(3));
    config->set_heads(kvasir::kAllLayers, 4, 2, 32);
    config->set_source(1, 0);
    change(*config);
    return support::error_of(kvasir::ErrorCode::kInvalidArgument,
                             [&] { support::CachePointer(kvasir::Cache::create(*config)); });
  };
  CHECK(refuse([](kvasir::CacheConfig& c) { c.set_source(2, 1); }).find("none of its own") != std::string::npos);
  CHECK(refuse([](kvasir::CacheConfig& c) { c.set_heads(1, 2, 2, 32); }).find("other heads") != std::string::npos);
  CHECK(refuse([](kvasir::CacheConfig& c) { c.set_sliding_window(0, 50); }).find("sees more") != std::string::npos);
  const float logits[] = {1.0f, 2.0f};
  CHECK(refuse([&](kvasir::CacheConfig& c) { c.set_sink_logits(2, logits, 2); }).find("sink logits") !=
        std::string::npos);
  const support::ConfigPointer config(kvasir::CacheConfig::create(2));
  const auto bad = [&](const auto& call) { support::error_of(kvasir::ErrorCode::kInvalidArgument, call); };
  bad([&] { config->set_source(2, 0); });
  bad([&] { config->set_source(0, -1); });
  bad([&] { config->set_soft_cap(0, -1.0f); });
  bad([&] { config->set_soft_cap(0, INFINITY); });
  const float wrong[] = {NAN};
  bad([&] { config->set_sink_logits(0, wrong, 1); });
  bad([&] { config->set_sink_logits(0, nullptr, 1); });
}
