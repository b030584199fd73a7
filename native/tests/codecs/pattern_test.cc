// The pattern codec without a cache: the acceptance test, matching, flattening and restoring one page.
#include <cmath>
#include <cstring>

#include "codecs/codec.h"
#include "codecs/pattern/format.h"
#include "codecs/pattern/formula.h"
#include "kvasir/error.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/formats.h"
#include "support/guarded.h"
#include "support/side_tables.h"

namespace {

using kvasir::Side;
using reference::kTokens;

const int kCodec = kvasir::codec_index("pattern");

support::Format format_of(Side side, int bits, int head_dim, const reference::Options& options = {}) {
  return support::make_format(kCodec, side, bits, head_dim, options);
}

struct Flattened {
  std::vector<float> rows;
  std::vector<uint8_t> page;
};

// flatten, then encode, as a cache does it.
Flattened flatten(const support::Format& format, const kvasir::Backend& backend, const support::Table& table,
                  const std::vector<float>& rows) {
  support::Guarded<uint8_t> page(format.page.page_bytes);
  support::Guarded<float> flat(rows.size());
  flat.fill(rows.data());
  kvasir::codec_at(kCodec).flatten(format.page, table.view, *backend.match, flat.data(), page.data());
  backend.codecs[kCodec]->encode(format.page, flat.data(), page.data());
  CHECK_MESSAGE(page.guards_intact(), backend.name, ", ", format.text, ": wrote outside the page");
  CHECK_MESSAGE(flat.guards_intact(), backend.name, ", ", format.text, ": wrote outside the rows");
  return {{flat.data(), flat.data() + flat.size()}, {page.data(), page.data() + page.size()}};
}

// Rows near vectors of the table, plus noise.
std::vector<float> rows_near(const support::Table& table, uint64_t seed, double noise) {
  support::Random random(seed);
  const int d = table.reference.head_dim;
  std::vector<float> rows;
  for (int t = 0; t < kTokens; ++t) {
    const int label = random.below(table.view.visible + 1);
    const float* vector = table.reference.vector(table.page, label);
    for (int c = 0; c < d; ++c) {
      rows.push_back(support::round_to_half((vector == nullptr ? 0.0 : vector[c]) + noise * random.normal()));
    }
  }
  return rows;
}

// Sum over channels and groups of tokens of squared ranges, in double.
double squared_ranges(const reference::PageShape& shape, const std::vector<float>& rows) {
  double sum = 0;
  for (int first = 0; first < kTokens; first += shape.group) {
    for (int c = 0; c < shape.head_dim; ++c) {
      double low = INFINITY, high = -INFINITY;
      for (int t = first; t < first + shape.group; ++t) {
        low = std::min<double>(low, rows[t * shape.head_dim + c]);
        high = std::max<double>(high, rows[t * shape.head_dim + c]);
      }
      sum += (high - low) * (high - low);
    }
  }
  return sum;
}

}  // namespace

TEST_CASE("pattern: the largest ratio of ranges that passes the test") {
  // Quantiles of the standard normal distribution, from tables.
  const struct {
    int head_dim;
    double alpha, z, ratio;
  } known[] = {{128, 0.05, 1.6448536269514722, 0.9116},
               {64, 0.05, 1.6448536269514722, 0.8764},
               {256, 0.05, 1.6448536269514722, 0.9368},
               {128, 0.10, 1.2815515655446004, 0.9306},
               {128, 0.01, 2.3263478740408408, 0.8764}};
  for (const auto& each : known) {
    const double ratio = kvasir::pattern::accept_ratio(each.head_dim, each.alpha);
    CHECK_MESSAGE(std::fabs(ratio - each.ratio) <= 0.00005, "d=", each.head_dim, " alpha=", each.alpha, ": ", ratio);
    CHECK(std::fabs(kvasir::pattern::normal_quantile(1 - each.alpha) - each.z) <= 1e-12);
    // The equation that it solves, and which side of it passes.
    const double c = 2 * each.z / std::sqrt(5.0 * each.head_dim);
    const auto gain = [&](double rho) { return (1 - rho * rho) - c * std::sqrt(1 + rho * rho * rho * rho); };
    CHECK(std::fabs(gain(ratio)) <= 1e-12);
    CHECK(gain(0.999 * ratio) > 0);
    CHECK(gain(1.001 * ratio) < 0);
    const auto format = format_of(Side::kValues, 2, each.head_dim, {{"alpha", each.alpha}});
    CHECK(format.page.numbers[kvasir::pattern::kAcceptRatio] == static_cast<float>(ratio));
  }
}

TEST_CASE("pattern: a level that nothing can pass accepts nothing, and is no missing test") {
  // d = 32, alpha = 1e-12: z = 7.03 gives c = 1.11 > 1, and even rho = 0 fails 1 >= c.
  CHECK(kvasir::pattern::accept_ratio(32, 1e-12) == 0);
  const support::Table table = support::make_table({32, 0}, 3, 32, 4.0);
  const auto rows = rows_near(table, 5, 0.1);
  const auto strict = format_of(Side::kValues, 2, 32, {{"alpha", 1e-12}});
  const auto lax = format_of(Side::kValues, 2, 32, {{"alpha", 0.0}});
  const Flattened none = flatten(strict, support::scalar_backend(), table, rows);
  const Flattened all = flatten(lax, support::scalar_backend(), table, rows);
  CHECK(kvasir::codec_at(kCodec).labelled(strict.page, none.page.data()) == 0);
  CHECK(kvasir::codec_at(kCodec).labelled(lax.page, all.page.data()) > 100);
}

TEST_CASE("pattern: without a threshold every vector has the nearest pattern, however far it is") {
  // Rows near zero, patterns far from it: no pattern would be nearest.
  const support::Table table = support::make_table({32, 0}, 3, 64, 8.0);
  auto rows = rows_near(table, 5, 0.0);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 3) - 1.0f;
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const reference::Options no_test = {{"accept", 0.0}, {"alpha", 0.0}};
    reference::Options always = no_test;
    always["raw"] = 0.0;
    const auto may = format_of(side, 2, 64, no_test), must = format_of(side, 2, 64, always);
    for (const kvasir::Backend* backend : support::available_backends()) {
      const auto labelled = [&](const support::Format& format) {
        return kvasir::codec_at(kCodec).labelled(format.page, flatten(format, *backend, table, rows).page.data());
      };
      CHECK(labelled(may) == 0);
      CHECK(labelled(must) == kTokens);
    }
  }
}

TEST_CASE("pattern: options out of range are refused") {
  for (const reference::Options& options : {reference::Options{{"patterns", 1.0}},
                                            {{"patterns", 65.0}},
                                            {{"patterns", 2.5}},
                                            {{"metric", 2.0}},
                                            {{"metric", -1.0}},
                                            {{"new_patterns", 0.5}},
                                            {{"accept", 2.0}},
                                            {{"alpha", -0.01}},
                                            {{"alpha", 0.5}},
                                            {{"alpha", NAN}},
                                            {{"raw", 2.0}},
                                            {{"patterns", NAN}},
                                            {{"group", 33.0}},
                                            {{"axis", 0.0}}}) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      CHECK_THROWS_AS(kvasir::configure_codec(kCodec, side, 2, 64, options), kvasir::Error);
    }
  }
}

TEST_CASE("pattern: matching is a brute-force search, the first of equals, on every backend") {
  for (const int d : support::kHeadDims) {
    for (const int vectors : {1, 2, 15, 16, 17, 33, 256}) {
      const support::Table table = support::make_table({vectors - 1, 0}, 7 + vectors, d);
      std::vector<float> all(static_cast<size_t>(vectors) * d, 0.0f);
      std::copy(table.reference.vectors.begin(), table.reference.vectors.end(), all.begin() + d);
      // Each vector a second time, further on: ties that the first must win.
      for (int v = vectors / 2; v < vectors; ++v) std::copy_n(&all[(v - vectors / 2) * d], d, &all[v * d]);
      reference::PatternTable brute{d, vectors - 1, 0, {all.begin() + d, all.end()}};
      std::vector<float> blocks(kvasir::match_block_floats(vectors, d));
      kvasir::make_match_blocks(all.data(), vectors, d, blocks.data());
      for (const int count : {1, 3, 4, 5, 128}) {
        const auto rows = support::half_rows(support::Profile::kNormal, 40 + count, count, d);
        for (const bool squared : {false, true}) {
          for (const kvasir::Backend* backend : support::available_backends()) {
            support::Guarded<int> labels(count);
            support::Guarded<float> distances(count);
            (squared ? backend->match->squared : backend->match->min_max)(rows.data(), count, d, blocks.data(), vectors,
                                                                          labels.data(), distances.data());
            int wrong = 0;
            for (int i = 0; i < count; ++i) {
              const float* x = &rows[i * d];
              const int expected = reference::pattern::nearest_label(x, brute, 0, squared);
              const auto distance = squared ? reference::pattern::residual_square : reference::pattern::residual_range;
              wrong += labels[i] != expected;
              wrong += distances[i] != distance(x, brute.vector(0, expected), d);
            }
            CHECK_MESSAGE(wrong == 0, backend->name, ", d=", d, ", ", vectors, " vectors, ", count, " rows, squared ",
                          squared, ": ", wrong, " differ");
            CHECK(labels.guards_intact());
            CHECK(distances.guards_intact());
          }
        }
      }
    }
  }
}

TEST_CASE("pattern: the table of squared distances is that of the search") {
  const int d = 80, count = 7;
  const support::Table table = support::make_table({16, 0}, 9, d);
  std::vector<float> block(kvasir::match_block_floats(16, d));
  kvasir::make_match_blocks(table.reference.vectors.data(), 16, d, block.data());
  const auto rows = support::half_rows(support::Profile::kOutliers, 41, count, d);
  for (const kvasir::Backend* backend : support::available_backends()) {
    support::Guarded<float> out(count * 16);
    backend->match->squared_table(rows.data(), count, d, block.data(), out.data());
    int wrong = 0;
    for (int i = 0; i < count * 16; ++i) {
      const float* vector = &table.reference.vectors[i % 16 * d];
      wrong += out[i] != reference::pattern::residual_square(&rows[i / 16 * d], vector, d);
    }
    CHECK_MESSAGE(wrong == 0, backend->name);
    CHECK(out.guards_intact());
  }
}

namespace {

bool has_option(const support::Format& format, const char* name, double value) {
  const auto found = format.options.find(name);
  return found != format.options.end() && found->second == value;
}

// Labels that the options prescribe, where `nearest` are those of the search.
std::vector<uint8_t> accepted(const support::Format& format, const support::Table& table,
                              const std::vector<float>& rows, std::vector<uint8_t> nearest) {
  const int d = format.shape.head_dim;
  const auto flat =
      reference::pattern::residuals(format.shape, rows.data(), nearest.data(), table.reference, table.page);
  if (format.shape.side == reference::Side::kKeys) {
    const bool better = squared_ranges(format.shape, flat) < squared_ranges(format.shape, rows);
    if (!has_option(format, "accept", 0.0) && !better) nearest.assign(kTokens, 0);
    return nearest;
  }
  const float ratio = format.page.numbers[kvasir::pattern::kAcceptRatio];
  for (int t = 0; t < kTokens && !has_option(format, "alpha", 0.0); ++t) {
    const float raw = reference::pattern::residual_range(&rows[t * d], nullptr, d);
    if (reference::pattern::residual_range(&flat[t * d], nullptr, d) > ratio * raw) nearest[t] = 0;
  }
  return nearest;
}

void check_page(const support::Format& format, const support::Table& table, const std::vector<float>& rows,
                const std::vector<uint8_t>& labels) {
  const auto page = reference::pattern::encode(format.shape, rows.data(), labels.data(), table.reference, table.page);
  const auto decoded = reference::pattern::decode(format.shape, page.data(), table.reference, table.page);
  support::Guarded<uint8_t> aligned(page.size());
  aligned.fill(page.data());
  for (const kvasir::Backend* backend : support::available_backends()) {
    const std::vector<uint8_t> written = flatten(format, *backend, table, rows).page;
    CHECK_MESSAGE(std::equal(labels.begin(), labels.end(), written.end() - kTokens), backend->name, ", ", format.text,
                  ", table ", table.view.fixed, "+", table.view.count - table.view.fixed, ": labels");
    CHECK_MESSAGE(written == page, backend->name, ", ", format.text, ": bytes");
    std::vector<float> read(rows.size());
    backend->codecs[kCodec]->decode(format.page, aligned.data(), read.data());
    kvasir::codec_at(kCodec).restore(format.page, table.view, aligned.data(), read.data());
    CHECK_MESSAGE(read == decoded, backend->name, ", ", format.text, ": restored");
  }
}

}  // namespace

TEST_CASE("pattern: pages are what the format and the options prescribe, on every backend") {
  support::Sampler sampler;
  for (const int d : {32, 48, 128}) {
    const std::vector<support::Format> formats = support::all_formats(d);
    for (const support::TableShape& shape : support::kTableShapes) {
      const support::Table table = support::make_table(shape, 5, d, 2.0);
      for (const double noise : {0.05, 1.0, 3.0}) {
        const auto rows = rows_near(table, 11, noise);
        std::vector<uint8_t> nearest[2][2];  // by metric, and by whether no pattern may be the nearest
        for (const bool squared : {false, true}) {
          for (const bool raw : {false, true}) {
            for (int t = 0; t < kTokens; ++t) {
              const int label =
                  reference::pattern::nearest_label(&rows[t * d], table.reference, table.page, squared, raw);
              nearest[squared][raw].push_back(static_cast<uint8_t>(label));
            }
          }
        }
        for (const support::Format& format : formats) {
          if (format.codec != kCodec || format.shape.bits == 3 || format.shape.bits == 8 || sampler.skip()) continue;
          const auto& found = nearest[has_option(format, "metric", 1.0)][!has_option(format, "raw", 0.0)];
          check_page(format, table, rows, accepted(format, table, rows, found));
        }
      }
    }
  }
}

TEST_CASE("pattern: residuals as wide as float16 reaches stay finite") {
  // Residuals of -32739 and 32762, in each token and in channels 0 and 1: their range of 65501 fits float16, but not
  // from -32752, which is what the minimum is rounded down to. By squares the patterns are nearest for the other
  // channels.
  support::Table table = support::make_table({2, 0}, 3, 32);
  std::vector<float> rows;
  for (int v = 0; v < 2; ++v) {
    for (int c = 0; c < 32; ++c) {
      const double x = c > 1 ? (v == 0 ? 1000.0 : -1000.0) : c == v ? 3.0 : -10.0;
      table.halves[v][c] = reference::half_nearest(x);
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int c = 0; c < 32; ++c)
      rows.push_back(c > 1 ? (t % 2 == 0 ? 1000.0f : -1000.0f) : c == t % 2 ? -32736.0f : 32752.0f);
  }
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const auto format = format_of(side, 2, 32, {{"accept", 0.0}, {"alpha", 0.0}, {"metric", 1.0}});
    for (const kvasir::Backend* backend : support::available_backends()) {
      const Flattened result = flatten(format, *backend, table, rows);
      const int parameters = side == Side::kKeys ? 4 * 32 : 4 * kTokens;
      for (int i = 0; i < parameters; i += 2) {
        const double value = reference::half_value(reference::uniform::load16(result.page.data() + i));
        REQUIRE_MESSAGE(std::isfinite(value), backend->name, ", ", format.text, ": parameter at ", i);
      }
    }
  }
}

TEST_CASE("pattern: values whose test lets every narrower range pass stay finite, too") {
  // Residuals of -32772 and 32718: 65490, less than the row's 65504, but from -32800, which the minimum is rounded down
  // to, more than float16 reaches.
  support::Table table = support::make_table({1, 0}, 3, 32);
  std::vector<float> rows;
  for (int c = 0; c < 32; ++c) table.halves[0][c] = reference::half_nearest(c == 0 ? 20.0 : c == 1 ? 34.0 : 0.0);
  for (int i = 0; i < kTokens * 32; ++i) rows.push_back(i % 32 == 0 ? -32752.0f : i % 32 == 1 ? 32752.0f : 0.0f);
  const auto format = format_of(Side::kValues, 2, 32, {{"alpha", 0.4999}});
  for (const kvasir::Backend* backend : support::available_backends()) {
    const Flattened result = flatten(format, *backend, table, rows);
    for (int i = 0; i < 4 * kTokens; i += 2) {
      const double value = reference::half_value(reference::uniform::load16(result.page.data() + i));
      REQUIRE_MESSAGE(std::isfinite(value), backend->name, ": parameter at ", i);
    }
  }
}

TEST_CASE("pattern: a page whose tokens all share a pattern gains nothing from it") {
  // The shift is absorbed by the minimum: squared ranges do not fall, and keys stay raw. Values, per token, do gain.
  support::Table table = support::make_table({1, 0}, 3, 64, 8.0);
  auto rows = rows_near(table, 5, 0.0);
  for (int t = 0; t < kTokens; ++t) std::copy_n(table.reference.vectors.begin(), 64, rows.begin() + t * 64);
  const auto keys = format_of(Side::kKeys, 2, 64), values = format_of(Side::kValues, 2, 64);
  const auto& labelled = kvasir::codec_at(kCodec).labelled;
  CHECK(labelled(keys.page, flatten(keys, support::scalar_backend(), table, rows).page.data()) == 0);
  CHECK(labelled(values.page, flatten(values, support::scalar_backend(), table, rows).page.data()) == kTokens);
}

TEST_CASE("pattern: keys are judged by the groups that share parameters") {
  // Each 32 tokens have a pattern of their own: over a page that narrows channels, over 32 tokens it only shifts them.
  // Integers, so that no range is rounded.
  support::Table table = support::make_table({4, 0}, 3, 64);
  support::Random random(17);
  for (int i = 0; i < 4 * 64; ++i) table.halves[i / 64][i % 64] = reference::half_nearest(random.below(200) - 100);
  std::vector<float> rows;
  for (int i = 0; i < kTokens * 64; ++i) {
    const double pattern = reference::half_value(table.halves[i / 64 / 32][i % 64]);
    rows.push_back(static_cast<float>(pattern + random.below(7) - 3));
  }
  for (const auto& [group, labelled] : {std::pair<double, int>{128.0, kTokens}, {32.0, 0}}) {
    const auto format = format_of(Side::kKeys, 2, 64, {{"group", group}});
    const Flattened result = flatten(format, support::scalar_backend(), table, rows);
    CHECK(kvasir::codec_at(kCodec).labelled(format.page, result.page.data()) == labelled);
  }
}

TEST_CASE("side tables: the view of a page, over tables that grew and were cut") {
  for (const int fixed : {1, 32, 64}) {
    for (const int64_t first : {1, 5}) {
      kvasir::SideTable table;
      const std::shared_ptr<uint16_t> memory(new uint16_t[64 * 32](), std::default_delete<uint16_t[]>());
      table.chunks.push_back({memory, fixed, 0});
      reference::PatternTable expected{32, fixed, first, std::vector<float>(static_cast<size_t>(fixed) * 32)};
      for (int64_t page = first; page < first + 300; ++page) {
        table.chunks.push_back({memory, 1, page});
        expected.vectors.resize(expected.vectors.size() + 32);
      }
      for (const int64_t kept : {first + 300, first + 40, first}) {
        table.truncate(kept);
        expected.vectors.resize(static_cast<size_t>(fixed + kept - first) * 32);
        CHECK(table.size() == expected.count());
        const auto vectors = kvasir::side_vectors(table, 0, 32);
        REQUIRE(static_cast<int>(vectors.size()) == expected.count());
        for (int64_t page = 0; page < kept; ++page) {
          const kvasir::SideView view = kvasir::side_view(table, vectors, page);
          REQUIRE(view.visible == expected.labels(page));
          REQUIRE(view.entry(0) == 0);
          for (int label = 1; label <= view.visible; ++label) {
            REQUIRE(view.entry(label) == (expected.vector(page, label) - expected.vectors.data()) / 32 + 1);
          }
        }
      }
      table.truncate(0);
      CHECK(table.chunks.empty());
    }
  }
}
