// Layers whose keys and values share a row (CacheConfig::set_latent), for every codec that can hold one on every
// backend, against double precision.
#include <cmath>

#include "kvasir/kvasir.h"
#include "reference/attention.h"
#include "support/caches.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/errors.h"
#include "support/tolerance.h"

namespace {

using kvasir::AttendBatch;
using kvasir::Side;

struct LatentChoice {
  std::string codec = "f16";
  int bits = 16;
  double axis = -1;  // negative: the codec's own
  std::string backend = "auto";
  int query_heads = 5;
  int row_dim = 576, value_dim = 512;
  int64_t sliding_window = 0;
  float soft_cap = 0.0f;
  bool sinks = false;
  int64_t budget = 0;

  std::string text() const {
    return codec + " " + std::to_string(bits) + " on " + backend + ", " + std::to_string(row_dim) + " and " +
           std::to_string(value_dim);
  }
};

struct LatentQueries {
  std::vector<int64_t> ids;
  std::vector<int> tokens;
  std::vector<uint64_t> masks;  // empty: none

  int rows() const {
    int rows = 0;
    for (const int each : tokens) rows += each;
    return rows;
  }
};

class LatentScene {
 public:
  explicit LatentScene(const LatentChoice& choice) : choice_(choice) {
    const support::ConfigPointer config(kvasir::CacheConfig::create(1));
    config->set_latent(0, choice.query_heads, choice.row_dim, choice.value_dim);
    config->set_codec(0, Side::kKeys, choice.codec.c_str(), choice.bits);
    if (choice.axis >= 0) config->set_option(0, Side::kKeys, "axis", choice.axis);
    config->set_sinks(4);
    config->set_window(20);
    config->set_sliding_window(0, choice.sliding_window);
    config->set_soft_cap(0, choice.soft_cap);
    if (choice.sinks) config->set_sink_logits(0, logits().data(), choice.query_heads);
    config->set_budget(choice.budget);
    config->set_backend(choice.backend.c_str());
    cache_.reset(kvasir::Cache::create(*config));
  }

  kvasir::Cache& cache() { return *cache_; }
  std::vector<float> rows(uint64_t seed, int tokens) const {
    return support::make_half_rows(support::Profile::kNormal, seed, tokens, choice_.row_dim);
  }
  int64_t add(int tokens, uint64_t seed) {
    const int64_t id = cache_->new_sequence();
    cache_->append(id, 0, rows(seed, tokens).data(), nullptr, tokens);
    return id;
  }
  std::vector<float> read(int64_t id, Side side, int64_t first, int64_t tokens) {
    const int width = side == Side::kKeys ? choice_.row_dim : choice_.value_dim;
    std::vector<float> rows(static_cast<size_t>(tokens) * width);
    cache_->read(id, 0, side, first, tokens, rows.data());
    return rows;
  }

  // Outputs and log-sums against the reference over the rows that are there.
  void check(const LatentQueries& wanted, uint64_t seed, const std::string& what) {
    const int heads = choice_.query_heads, d = choice_.row_dim, v = choice_.value_dim;
    const auto queries = support::float_rows(seed, wanted.rows(), heads * d);
    std::vector<float> outputs(static_cast<size_t>(wanted.rows()) * heads * v, -99.0f);
    std::vector<float> log_sums(static_cast<size_t>(wanted.rows()) * heads, -99.0f);
    AttendBatch batch;
    batch.sequences = wanted.ids.data();
    batch.count = static_cast<int>(wanted.ids.size());
    batch.tokens = wanted.tokens.data();
    if (!wanted.masks.empty()) batch.masks = wanted.masks.data();
    batch.queries.data = queries.data();
    batch.outputs.data = outputs.data();
    batch.log_sums = log_sums.data();
    cache_->attend(batch);
    const double limit = support::nmse_limit(kvasir::Precision::kExact, choice_.codec == "f16");
    size_t row = 0;
    for (size_t i = 0; i < wanted.ids.size(); ++i) {
      const auto expected = reference_of(wanted, i, row, queries.data() + row * heads * d);
      std::vector<double> values;  // the first channels of what the whole row would give
      for (size_t k = 0; k < expected.outputs.size(); ++k) {
        if (static_cast<int>(k % d) < v) values.push_back(expected.outputs[k]);
      }
      const double nmse = reference::nmse(outputs.data() + row * heads * v, values);
      CHECK_MESSAGE(nmse <= limit, choice_.text(), ", ", what, ", sequence ", i, ": NMSE ", nmse);
      double off = 0.0;
      for (size_t k = 0; k < expected.log_sums.size(); ++k) {
        const double difference = std::fabs(log_sums[row * heads + k] - expected.log_sums[k]);
        off = difference <= off ? off : difference;  // NaN stays
      }
      CHECK_MESSAGE(off <= 8 * std::sqrt(limit) + 1e-5, choice_.text(), ", ", what, ": log-sum off by ", off);
      row += static_cast<size_t>(wanted.tokens[i]);
    }
  }

 private:
  std::vector<float> logits() const {
    std::vector<float> logits;
    for (int h = 0; h < choice_.query_heads; ++h) logits.push_back(1.5f * static_cast<float>(h % 4) - 2.0f);
    return logits;
  }

  reference::AttentionResult reference_of(const LatentQueries& wanted, size_t i, size_t row, const float* queries) {
    reference::AttentionShape shape = {choice_.query_heads, 1, choice_.row_dim, choice_.sliding_window, 0.0,
                                       choice_.soft_cap,    {}};
    if (choice_.sinks) {
      for (const float logit : logits()) shape.sinks.push_back(logit);
    }
    const int tokens = wanted.tokens[i];
    reference::Guesses guesses;
    for (int t = 0; t < tokens && !wanted.masks.empty() && wanted.masks[row] != 0; ++t) {
      guesses.sees.emplace_back();
      for (int j = 0; j < tokens; ++j) guesses.sees.back().push_back((wanted.masks[row + t] >> j & 1) != 0);
      guesses.depths.push_back(__builtin_popcountll(wanted.masks[row + t]) - 1);
    }
    const int64_t length = cache_->length(wanted.ids[i], 0);
    int64_t first = 0;
    if (choice_.sliding_window > 0) first = std::max<int64_t>(0, length - tokens - choice_.sliding_window + 1);
    const auto keys = read(wanted.ids[i], Side::kKeys, first, length - first);
    return reference::attend(shape, keys.data(), keys.data(), first, length, queries, tokens,
                             guesses.sees.empty() ? nullptr : &guesses);
  }

  const LatentChoice choice_;
  support::CachePointer cache_;
};

// verb(choice) for every codec that can hold such rows on every backend.
template <class Verb>
void for_each_choice(const Verb& verb) {
  struct Form {
    const char* codec;
    int bits;
    double axis;
  };
  const Form forms[] = {
      {"f16", 16, -1}, {"uniform", 2, -1}, {"uniform", 4, 1}, {"uniform", 3, 0}, {"progressive", 8, -1}};
  for (const Form& form : forms) {
    for (const std::string& backend : support::backend_names()) {
      if (support::kSanitized && backend == "scalar") continue;  // slow
      LatentChoice choice;
      choice.codec = form.codec;
      choice.bits = form.bits;
      choice.axis = form.axis;
      choice.backend = backend;
      verb(choice);
    }
  }
}

LatentQueries random_queries(LatentScene& scene, const std::vector<int64_t>& ids, support::Random& random, bool trees) {
  LatentQueries wanted;
  const int count = 1 + random.below(5);
  for (int i = 0; i < count; ++i) {
    wanted.ids.push_back(ids[static_cast<size_t>(random.below(static_cast<int>(ids.size())))]);
    const int most = static_cast<int>(std::min<int64_t>(scene.cache().length(wanted.ids.back(), 0), 40));
    wanted.tokens.push_back(random.chance(0.5) ? 1 : 1 + random.below(most));
    const size_t first = wanted.masks.size();
    for (int t = 0; t < wanted.tokens.back() && trees; ++t) {
      const int parent = random.below(t + 1) - 1;
      wanted.masks.push_back((parent < 0 ? 0 : wanted.masks[first + parent]) | uint64_t{1} << t);
    }
  }
  return wanted;
}

}  // namespace

TEST_CASE("latent: ragged batches, trees, caps, sinks and windows, for every codec on every backend") {
  int turn = 0;
  for_each_choice([&](LatentChoice choice) {
    ++turn;
    choice.soft_cap = turn % 3 == 0 ? 2.5f : 0.0f;
    choice.sinks = turn % 2 == 0;
    choice.sliding_window = turn % 4 == 1 ? 150 : 0;
    if (turn % 3 == 1) {
      choice.row_dim = 320;
      choice.value_dim = 176;
      choice.query_heads = 40;
    }
    LatentScene scene(choice);
    support::Random random(support::seed() + static_cast<uint64_t>(turn));
    std::vector<int64_t> ids;
    for (const int length : {1, 70, 128 + 4 + 60, 420}) ids.push_back(scene.add(length, random.next()));
    for (int round = 0; round < support::repeat(2); ++round) {
      const auto wanted = random_queries(scene, ids, random, round % 2 == 1);
      scene.check(wanted, random.next(), "round " + std::to_string(round));
    }
  });
}

TEST_CASE("latent: a row is stored once, read as both sides, and computed on the generic path") {
  for_each_choice([&](LatentChoice choice) {
    LatentScene scene(choice);
    const int64_t id = scene.cache().new_sequence();
    const auto rows = scene.rows(3, 300);
    const auto bytes = [&] { return support::stats_of(scene.cache())->bytes(); };
    scene.cache().append(id, 0, rows.data(), nullptr, 1);
    CHECK(bytes() == 16 * choice.row_dim * 2);  // one block of 16-bit rows
    scene.cache().append(id, 0, rows.data() + choice.row_dim, nullptr, 299);
    const auto keys = scene.read(id, Side::kKeys, 0, 300), values = scene.read(id, Side::kValues, 0, 300);
    bool same = true;
    for (int t = 0; t < 300; ++t) {
      for (int c = 0; c < choice.value_dim; ++c) {
        same &= values[t * choice.value_dim + c] == keys[t * choice.row_dim + c];
      }
    }
    CHECK(same);
    if (choice.codec == "f16") CHECK(keys == rows);
    const auto before = support::stats_of(scene.cache());
    CHECK(before->page_bits_per_element(0) < choice.bits + 2);
    scene.check({{id}, {1}, {}}, 5, "one");
    const auto after = support::stats_of(scene.cache());
    CHECK(after->tiles() - before->tiles() == scene.cache().page_count(id, 0));
    CHECK(after->fallback_tiles() - before->fallback_tiles() == scene.cache().page_count(id, 0));
  });
}

TEST_CASE("latent: forks, cuts, guesses and promises are those of any layer") {
  for_each_choice([&](LatentChoice choice) {
    choice.row_dim = 192;
    choice.value_dim = 128;
    LatentScene scene(choice);
    kvasir::Cache& cache = scene.cache();
    const int64_t id = scene.add(400, 1);
    const int64_t fork = cache.fork(id);
    const auto more = scene.rows(2, 60);
    cache.reserve(fork, 60);
    cache.append(fork, 0, more.data(), nullptr, 60);
    cache.truncate(id, 200);
    CHECK(cache.length(fork, 0) == 460);
    scene.check({{id, fork}, {3, 1}, {}}, 7, "forked and cut");
    cache.guess(id);
    cache.append(id, 0, more.data(), nullptr, 6);
    const int kept[] = {0, 2, 5};
    cache.keep(id, kept, 3);
    CHECK(cache.length(id, 0) == 203);
    const auto rows = scene.read(id, Side::kKeys, 200, 3);
    for (int i = 0; i < 3; ++i) {
      for (int c = 0; c < choice.row_dim; ++c)
        REQUIRE(rows[i * choice.row_dim + c] == more[kept[i] * choice.row_dim + c]);
    }
    scene.check({{id}, {2}, {}}, 8, "kept");
    cache.release(id);
    cache.release(fork);
    CHECK(support::stats_of(cache)->bytes() == 0);
  });
}

TEST_CASE("latent: rows of many sequences in one call are those of single appends, in any type and with strides") {
  LatentChoice choice;
  choice.codec = "uniform";
  choice.bits = 4;
  LatentScene scene(choice);
  const int counts[] = {150, 1, 290};
  const int64_t tokens[] = {150, 1, 290};
  const auto rows = scene.rows(4, 441);
  const int stride = choice.row_dim + 24;
  std::vector<float> apart(static_cast<size_t>(441) * stride, 1e9f);
  for (int t = 0; t < 441; ++t) {
    std::copy_n(rows.data() + t * choice.row_dim, choice.row_dim, apart.data() + t * stride);
  }
  std::vector<int64_t> ids, alone;
  int first = 0;
  for (const int count : counts) {
    ids.push_back(scene.cache().new_sequence());
    alone.push_back(scene.cache().new_sequence());
    scene.cache().append(alone.back(), 0, rows.data() + first * choice.row_dim, nullptr, count);
    first += count;
  }
  scene.cache().append_rows(0, ids.data(), tokens, 3, {apart.data(), kvasir::ElementType::kFloat32, stride, 0}, {});
  for (size_t i = 0; i < ids.size(); ++i) {
    CHECK(scene.read(ids[i], Side::kKeys, 0, tokens[i]) == scene.read(alone[i], Side::kKeys, 0, tokens[i]));
  }
}

TEST_CASE("latent: what cannot be is refused, and nothing changes") {
  const auto config_of = [](int row_dim, int value_dim) {
    support::ConfigPointer config(kvasir::CacheConfig::create(1));
    config->set_latent(0, 4, row_dim, value_dim);
    return config;
  };
  const auto bad = [](const auto& call) { return support::error_of(kvasir::ErrorCode::kInvalidArgument, call); };
  bad([&] { config_of(640, 512); });
  bad([&] { config_of(80, 64); });
  bad([&] { config_of(576, 592); });
  bad([&] { config_of(576, 500); });
  const auto create = [](const kvasir::CacheConfig& config) { support::CachePointer(kvasir::Cache::create(config)); };
  for (const char* codec : {"pattern", "tiered", "commvq", "spectral"}) {
    const auto config = config_of(576, 512);
    config->set_codec(0, Side::kKeys, codec, codec == std::string("commvq") ? 1 : 2);
    const std::string text = bad([&] { create(*config); });
    CHECK_MESSAGE(text.find("layer 0") != std::string::npos, text);
  }
  auto config = config_of(576, 512);
  const std::vector<float> scaling(576, 2.0f);
  config->set_key_scaling(0, scaling.data(), 576);
  CHECK(bad([&] { create(*config); }).find("key scaling") != std::string::npos);
  config = config_of(576, 512);
  const std::vector<double> frequencies(48, 1.0);
  config->set_rope(0, kvasir::RopePairs::kHalves, frequencies.data(), 48, 1.0);
  CHECK(bad([&] { create(*config); }).find("RoPE") != std::string::npos);

  LatentScene scene({});
  const int64_t id = scene.add(10, 1);
  auto rows = scene.rows(2, 2);
  bad([&] { scene.cache().append(id, 0, rows.data(), rows.data(), 2); });
  bad([&] { scene.cache().append(id, 0, nullptr, nullptr, 2); });
  rows[576 + 300] = NAN;
  const std::string text =
      support::error_of(kvasir::ErrorCode::kNotFinite, [&] { scene.cache().append(id, 0, rows.data(), nullptr, 2); });
  CHECK_MESSAGE(text.find("token 1, head 0, channel 300") != std::string::npos, text);
  CHECK(scene.cache().length(id, 0) == 10);
}

TEST_CASE("latent: pages shrink where a budget runs out") {
  LatentChoice choice;
  choice.codec = "progressive";
  choice.bits = 16;
  choice.row_dim = 128;
  choice.value_dim = 96;
  choice.budget = 200 * 128 * 2 + 3 * 128 * 128;
  LatentScene scene(choice);
  const int64_t id = scene.cache().new_sequence();
  for (int i = 0; i < 10; ++i) scene.cache().append(id, 0, scene.rows(i, 64).data(), nullptr, 64);
  CHECK(support::stats_of(scene.cache())->shrinks(0) > 0);
  scene.check({{id}, {1}, {}}, 5, "shrunk");
}
