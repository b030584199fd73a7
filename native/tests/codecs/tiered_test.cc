// The tiered codec by itself: which channels get which bits, and parts with any tiers at all.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "codecs/tiered/parameters.h"
#include "kvasir/error.h"
#include "reference/tiered_page.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/formats.h"
#include "support/guarded.h"

namespace {

using kvasir::Side;

support::Format format_of(int head_dim, const reference::Options& options) {
  return support::make_format(kvasir::codec_index("tiered"), Side::kKeys, 2, head_dim, options);
}

// Mean magnitudes of queries over five orders of magnitude.
std::vector<float> uneven_queries(uint64_t seed, int d) {
  support::Random random(seed);
  std::vector<float> queries(d);
  for (float& q : queries) q = static_cast<float>(std::exp(2.0 * random.normal()));
  return queries;
}

// What lay_out says of the widths: [d].
std::vector<int> widths_of(const support::Format& format, const std::vector<uint8_t>& part) {
  std::vector<int> widths(format.page.head_dim);
  const int n16 = part[0] | part[1] << 8, n4 = part[2] | part[3] << 8;
  for (int i = 0; i < format.page.head_dim; ++i) widths[part[4 + i]] = i < n16 ? 16 : i < n16 + n4 ? 4 : 2;
  return widths;
}

double mean(const std::vector<int>& widths) {
  return std::accumulate(widths.begin(), widths.end(), 0.0) / static_cast<double>(widths.size());
}

}  // namespace

TEST_CASE("tiered: every backend chooses as the format says, whatever the queries") {
  support::Sampler sampler;
  for (const int head_dim : support::kHeadDims) {
    for (const reference::Options& options : reference::tiered::variants(reference::Side::kKeys, head_dim)) {
      const support::Format format = format_of(head_dim, options);
      for (const support::Profile profile : support::kProfiles) {
        if (sampler.skip()) continue;
        const auto& rows = support::half_rows(profile, 5, reference::kTokens, head_dim);
        std::vector<float> queries = uneven_queries(6 + head_dim, head_dim);
        queries[3] = 0.0f;
        queries[5] = queries[9] = queries[17];
        const auto tiers = reference::tiered::choose(format.shape, rows.data(), queries.data());
        const std::vector<uint8_t> expected = reference::tiered::encode(format.shape, rows.data(), tiers);
        for (const kvasir::Backend* backend : support::available_backends()) {
          const kvasir::CodecKernels& kernels = *backend->codecs[format.codec];
          std::vector<uint8_t> part = support::begin_part(format, kernels, rows.data(), queries.data());
          REQUIRE_MESSAGE(part.size() == expected.size(), backend->name, ", ", format.text);
          support::Guarded<uint8_t> page(part.size());
          page.fill(part.data());
          kernels.encode(format.page, rows.data(), page.data());
          CHECK_MESSAGE(std::memcmp(page.data(), expected.data(), expected.size()) == 0, backend->name, ", ",
                        format.text, ", ", support::name_of(profile));
        }
      }
    }
  }
}

TEST_CASE("tiered: thresholds as the paper has them") {
  // Saliencies 0, 1, .. of channels with the range 3 c and queries of 1, so that limits fall between known channels.
  const int d = 32;
  std::vector<float> rows(reference::kTokens * d, 0.0f);
  for (int c = 0; c < d; ++c) rows[7 * d + c] = static_cast<float>(3 * c);
  const auto& kernels = *support::scalar_backend().codecs[kvasir::codec_index("tiered")];
  const auto widths = [&](const reference::Options& options) {
    const support::Format format = format_of(d, options);
    return widths_of(format, support::begin_part(format, kernels, rows.data()));
  };
  // Absolute: 16 bits from 28 on, 4 bits from 16 on: 12 channels, whole vectors.
  const auto absolute = widths({{"mode", 1.0}, {"tau16", 27.5}, {"tau4", 15.5}});
  for (int c = 0; c < d; ++c) CHECK(absolute[c] == (c >= 28 ? 16 : c >= 16 ? 4 : 2));
  // A channel at the limit is not above it.
  const auto at_limit = widths({{"mode", 1.0}, {"tau16", 27.0}, {"tau4", 15.0}});
  for (int c = 0; c < d; ++c) CHECK(at_limit[c] == absolute[c]);
  // Normalised: the mean is 15.5.
  const auto normalised = widths({{"tau16", 27.5 / 15.5}, {"tau4", 1.0}});
  for (int c = 0; c < d; ++c) CHECK(normalised[c] == absolute[c]);
  // Nine channels above the limit: three more fill the vector.
  const auto filled = widths({{"mode", 1.0}, {"tau16", 27.5}, {"tau4", 18.5}});
  for (int c = 0; c < d; ++c) CHECK(filled[c] == (c >= 28 ? 16 : c >= 16 ? 4 : 2));
  // The paper's thresholds for one model leave no 4-bit tier.
  const auto missing = widths({{"tau16", 1.52}, {"tau4", 1.60}});
  CHECK(std::count(missing.begin(), missing.end(), 4) == 0);
  CHECK(std::count(missing.begin(), missing.end(), 16) == 8);  // above 23.56
  // Extremes.
  const auto none = widths({{"mode", 1.0}, {"tau16", 1e30}, {"tau4", 1e30}});
  CHECK(std::count(none.begin(), none.end(), 2) == d);
  const auto all = widths({{"mode", 1.0}, {"tau16", 0.0}, {"tau4", 0.0}});
  CHECK(std::count(all.begin(), all.end(), 16) == d - 1);  // channel 0 is constant: 2 bits are exact
}

TEST_CASE("tiered: BUDGET hits its target within 0.05 bit") {
  // d = 128 as in the paper: four channels more or less of 4 bits are 0.0625 bit, so the nearest is within 0.032; above
  // 4 bits a step is 12 bits, 0.094.
  const int d = 128;
  support::Random random(support::seed());
  const auto& kernels = *support::scalar_backend().codecs[kvasir::codec_index("tiered")];
  for (int round = 0; round < support::repeat(300); ++round) {
    const double target = 2.0 + (round % 2 == 0 ? 1.9 : 14.0) * random.uniform();
    const support::Format format = format_of(d, {{"mode", 2.0}, {"key_bits", target}});
    const auto rows = support::make_half_rows(support::Profile::kOutliers, random.next(), reference::kTokens, d);
    const auto queries = uneven_queries(random.next(), d);
    const auto widths = widths_of(format, support::begin_part(format, kernels, rows.data(), queries.data()));
    CHECK_MESSAGE(std::fabs(mean(widths) - target) <= 0.05, "target ", target, " became ", mean(widths));
  }
  // Channels that are constant gain nothing by more bits.
  const support::Format format = format_of(d, {{"mode", 2.0}, {"key_bits", 8.0}});
  const std::vector<float> zeros(reference::kTokens * d, 0.0f);
  CHECK(mean(widths_of(format, support::begin_part(format, kernels, zeros.data()))) == 2.0);
}

TEST_CASE("tiered: BUDGET spends its bits where they gain most") {
  // No swap of two widths, and no move of bits between channels at equal cost, lowers the squared error.
  const int d = 64;
  const auto error = [](double a, int bits) { return bits == 16 ? 0.0 : bits == 4 ? a * a / 25 : a * a; };
  const auto& kernels = *support::scalar_backend().codecs[kvasir::codec_index("tiered")];
  for (int round = 0; round < support::repeat(50); ++round) {
    const support::Format format = format_of(d, {{"mode", 2.0}, {"key_bits", 2.2 + 0.1 * round}});
    const auto rows = support::make_half_rows(support::Profile::kOutliers, 50 + round, reference::kTokens, d);
    const auto queries = uneven_queries(90 + round, d);
    const auto a = reference::tiered::saliency(format.shape, rows.data(), queries.data());
    const auto widths = widths_of(format, support::begin_part(format, kernels, rows.data(), queries.data()));
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < d; ++j) {
        const double now = error(a[i], widths[i]) + error(a[j], widths[j]);
        const double swapped = error(a[i], widths[j]) + error(a[j], widths[i]);
        CHECK(now <= swapped * (1 + 1e-6));
      }
    }
  }
}

TEST_CASE("tiered: any counts and any permutation round-trip on every backend") {
  support::Random random(support::seed() + 1);
  for (int round = 0; round < support::repeat(120); ++round) {
    const int d = support::kHeadDims[round % 6];
    const double group = round % 3 == 0 ? 32 : round % 3 == 1 ? 64 : 128;
    const int parameter_bits = round % 5 < 2 ? 8 : 16;
    const support::Format format =
        format_of(d, {{"group", group}, {"parameter_bits", static_cast<double>(parameter_bits)}});
    std::vector<int> order(d);
    std::iota(order.begin(), order.end(), 0);
    for (int i = d - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
    const int n16 = random.below(d + 1);
    const int rest = d - n16;
    const int n4 = random.chance(0.2) ? rest : std::min(rest, 4 * random.below(rest / 4 + 1));
    reference::tiered::Tiers tiers;
    tiers.of[0].assign(order.begin(), order.begin() + n16);
    tiers.of[1].assign(order.begin() + n16, order.begin() + n16 + n4);
    tiers.of[2].assign(order.begin() + n16 + n4, order.end());
    const auto rows = support::make_half_rows(support::Profile::kOutliers, random.next(), reference::kTokens, d);
    const std::vector<uint8_t> expected = reference::tiered::encode(format.shape, rows.data(), tiers);
    const reference::PageContent content = reference::tiered::decode(format.shape, expected.data());
    const auto queries = support::float_rows(random.next(), 5, d);
    for (const kvasir::Backend* backend : support::available_backends()) {
      const kvasir::CodecKernels& kernels = *backend->codecs[format.codec];
      support::Guarded<uint8_t> page(expected.size());
      std::memset(page.data(), 0x5a, expected.size());
      const size_t head =
          4 + d +
          reference::kTokens / static_cast<int>(group) * (parameter_bits / 4) *
              (reference::tiered::Places::padded(n4) + reference::tiered::Places::padded(tiers.of[2].size()));
      std::memcpy(page.data(), expected.data(), head);
      kernels.encode(format.page, rows.data(), page.data());
      CHECK_MESSAGE(std::memcmp(page.data(), expected.data(), expected.size()) == 0, backend->name, ", n16 ", n16,
                    ", n4 ", n4, ", ", format.text);
      CHECK(page.guards_intact());
      support::Guarded<float> scores(5 * reference::kTokens);
      kernels.key_scores(format.page, page.data(), {queries.data(), 5, d, false}, scores.data());
      double error = 0.0, power = 0.0;
      for (int r = 0; r < 5; ++r) {
        for (int t = 0; t < reference::kTokens; ++t) {
          double want = 0.0;
          for (int c = 0; c < d; ++c) want += static_cast<double>(queries[r * d + c]) * content.rows[t * d + c];
          error += (scores[r * 128 + t] - want) * (scores[r * 128 + t] - want);
          power += want * want;
        }
      }
      CHECK_MESSAGE(error <= 1e-6 * power, backend->name, ", n16 ", n16, ", n4 ", n4, ", ", format.text, ": ",
                    error / power);
      CHECK(scores.guards_intact());
    }
  }
}

TEST_CASE("tiered: parameters of 8 bits cover their group, as narrowly as bytes can") {
  support::Random random(support::seed() + 2);
  const support::Format format = format_of(32, {{"parameter_bits", 8}});
  const auto layout = kvasir::tiered::layout_of(format.page, 0, 0);
  std::vector<uint8_t> part(layout.parameters_end());
  const auto check = [&](double low, double high) {
    const auto found = kvasir::tiered::byte_parameters_of(static_cast<float>(low), static_cast<float>(high));
    const auto expected = reference::tiered::byte_parameters(low, high);
    const double lo = reference::half_value(found.lo), range = reference::half_value(found.range);
    CHECK_MESSAGE(lo == expected.lo_value(), low, " to ", high);
    CHECK_MESSAGE(range == expected.range_value(), low, " to ", high);
    kvasir::tiered::store_parameters(layout, 1, 5, found, part.data());
    const auto stored = kvasir::tiered::load_parameters(layout, part.data(), 1, 5);
    CHECK_MESSAGE((stored.lo == found.lo && stored.range == found.range), low, " to ", high);
    if (high - low > 61440 * 15 / 16) return;  // lo may be a sixteenth too low
    CHECK(lo <= low);
    CHECK(lo + range >= high);
    // Bytes are an eighth apart or 2^-17, a lo a sixteenth too low; and lo reaches 8 ranges below 0, 143 / 16 above.
    const double own = high - low, reach = low < 0 ? -low / 8 : high * 16 / 143;
    CHECK_MESSAGE(range <= std::max(own * 16 / 15, reach) * 9 / 8 + std::ldexp(1.0, -16), low, " to ", high);
  };
  for (int i = 0; i < support::repeat(20000); ++i) {
    const auto element = [&] {
      const double x = std::exp(3 * random.normal()) * random.normal();
      const double most = random.chance(0.5) ? 32752.0 : 65504.0;
      return reference::half_value(
          reference::half_nearest(std::max(-most, std::min(most, random.chance(0.1) ? x * 1e4 : x))));
    };
    const double a = element(), b = random.chance(0.1) ? a : element();
    check(std::min(a, b), std::max(a, b));
  }
  check(0, 0);
  check(-32752, 32752);
  check(-32752, -32752);
  check(32752, 32752);
  check(-65504, -65504);  // lo in sixteenths of a range would be no float16
  check(-65504, 65504);
  check(-65472, -61000);
  check(65504, 65504);
  check(std::ldexp(1.0, -24), std::ldexp(1.0, -24));
  check(-std::ldexp(1.0, -24), 0);
  check(143, 143);
  check(-128, -120);
}

TEST_CASE("tiered: a part is never shorter than the most that its head may take") {
  for (const int d : support::kHeadDims) {
    for (const double group : {32.0, 64.0, 128.0}) {
      for (const int size : {1, 2}) {
        const support::Format format = format_of(d, {{"group", group}, {"parameter_bits", 8.0 * size}});
        for (int n16 = 0; n16 <= d; ++n16) {
          for (int n4 = 0; n16 + n4 <= d; n4 += 4) {
            const auto n2 = static_cast<size_t>(d - n16 - n4);
            const reference::tiered::Places places{
                d, static_cast<int>(group), size, static_cast<size_t>(n16), static_cast<size_t>(n4), n2};
            CHECK(places.bytes() >= format.page.head_bytes);
            CHECK(places.bytes() % 64 == 0);
            CHECK(places.columns() <= static_cast<size_t>(d));
          }
        }
      }
    }
  }
}

TEST_CASE("tiered: options out of range, and values, are refused by name") {
  const int codec = kvasir::codec_index("tiered");
  const auto refused = [&](Side side, const char* option, double value, const char* named) {
    try {
      kvasir::configure_codec(codec, side, 2, 64, {{option, value}});
      return false;
    } catch (const kvasir::Error& error) {
      return error.code() == kvasir::ErrorCode::kInvalidArgument &&
             std::string(error.what()).find(named) != std::string::npos;
    }
  };
  CHECK(refused(Side::kKeys, "mode", 3, "mode"));
  CHECK(refused(Side::kKeys, "mode", 0.5, "mode"));
  CHECK(refused(Side::kKeys, "tau16", -0.1, "tau16"));
  CHECK(refused(Side::kKeys, "tau4", -1, "tau4"));
  CHECK(refused(Side::kKeys, "tau4", NAN, "tau4"));
  CHECK(refused(Side::kKeys, "key_bits", 1.9, "key_bits"));
  CHECK(refused(Side::kKeys, "key_bits", 16.1, "key_bits"));
  CHECK(refused(Side::kKeys, "queries", 2, "queries"));
  CHECK(refused(Side::kKeys, "group", 48, "group"));
  CHECK(refused(Side::kKeys, "parameter_bits", 12, "parameter_bits"));
  CHECK(refused(Side::kValues, "group", 32, "values"));
}
