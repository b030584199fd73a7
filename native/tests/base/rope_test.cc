// RoPE against its formulas in long double: frequencies, the three scalings, turns far out, and the identity by which
// attention needs no table by position.
#include "base/rope.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kvasir/error.h"
#include "kvasir/rope.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"

namespace {

using kvasir::RopePairs;
using Real = long double;
constexpr RopePairs kBoth[] = {RopePairs::kHalves, RopePairs::kNeighbours};
const Real kPi = std::acos(Real{-1});

std::vector<double> plain(double base, int head_dim) {
  std::vector<double> result(head_dim / 2);
  kvasir::rope_frequencies(base, head_dim, result.data());
  return result;
}

// base^(-2j/d) as an exponential, not a power.
Real frequency(Real base, int j, int d) { return std::exp(-2 * Real(j) / d * std::log(base)); }

// Channels (first, second) of pair j.
std::pair<int, int> channels(RopePairs pairs, int j, int d) {
  return pairs == RopePairs::kHalves ? std::make_pair(j, j + d / 2) : std::make_pair(2 * j, 2 * j + 1);
}

bool close(Real a, Real b, Real relative) { return std::fabs(a - b) <= relative * std::fabs(b); }

}  // namespace

TEST_CASE("rope: plain frequencies and linear scaling") {
  for (const int d : {32, 48, 128, 256}) {
    for (const double base : {10000.0, 500000.0, 1e6}) {
      auto found = plain(base, d);
      for (int j = 0; j < d / 2; ++j) CHECK(close(found[j], frequency(base, j, d), 1e-14L));
      kvasir::scale_rope_linear(4.0, d, found.data());
      for (int j = 0; j < d / 2; ++j) CHECK(close(found[j], frequency(base, j, d) / 4, 1e-14L));
    }
  }
}

TEST_CASE("rope: Llama 3 scaling") {
  // The published rule, by wave length.
  const Real factor = 8, low = 1, high = 4, context = 8192;
  for (const int d : {64, 128}) {
    auto found = plain(500000.0, d);
    kvasir::scale_rope_llama3(8.0, 1.0, 4.0, 8192.0, d, found.data());
    int kept = 0, stretched = 0, blended = 0;
    for (int j = 0; j < d / 2; ++j) {
      const Real f = frequency(500000, j, d), wave = 2 * kPi / f;
      Real expected;
      if (wave < context / high) {
        expected = f, ++kept;
      } else if (wave > context / low) {
        expected = f / factor, ++stretched;
      } else {
        const Real smooth = (context / wave - low) / (high - low);
        expected = (1 - smooth) * f / factor + smooth * f, ++blended;
      }
      CHECK(close(found[j], expected, 1e-13L));
    }
    CHECK(kept > 0);
    CHECK(stretched > 0);
    CHECK(blended > 0);
  }
}

TEST_CASE("rope: YaRN scaling") {
  const int d = 128;
  const Real base = 1000000, factor = 4, context = 32768;
  auto found = plain(1e6, d);
  const double magnitude = kvasir::scale_rope_yarn(1e6, 4.0, 32.0, 1.0, 32768.0, d, found.data());
  CHECK(close(magnitude, 0.1L * std::log(factor) + 1, 1e-15L));
  // Pair j turns context * base^(-2j/d) / 2 pi times; solved for j, and widened to whole numbers.
  const auto pair_of = [&](Real turns) { return d * std::log(context / (turns * 2 * kPi)) / (2 * std::log(base)); };
  const Real first = std::floor(pair_of(32)), last = std::ceil(pair_of(1));
  CHECK(first == 23);
  CHECK(last == 40);
  for (int j = 0; j < d / 2; ++j) {
    const Real f = frequency(base, j, d);
    const Real mask = j <= first ? 1 : j >= last ? 0 : 1 - (j - first) / (last - first);
    CHECK(close(found[j], f / factor * (1 - mask) + f * mask, 1e-13L));
  }
  // Factor 1 changes nothing; a context too short for any pair to be fast stretches all but the first.
  auto same = plain(1e6, d);
  CHECK(kvasir::scale_rope_yarn(1e6, 1.0, 32.0, 1.0, 32768.0, d, same.data()) == 1.0);
  CHECK(same == plain(1e6, d));
  kvasir::scale_rope_yarn(1e6, 4.0, 32.0, 1.0, 1.0, d, same.data());
  for (int j = 1; j < d / 2; ++j) CHECK(close(same[j], frequency(base, j, d) / 4, 1e-13L));
}

TEST_CASE("rope: rotation is exact up to position 1M") {
  const int heads = 2, d = 64, tokens = 3;
  const auto rows = support::float_rows(support::seed(), tokens, heads * d);
  for (const RopePairs pairs : kBoth) {
    for (const int64_t first : {int64_t{0}, int64_t{4095}, int64_t{999998}, int64_t{-1000000}}) {
      auto found = rows;
      const auto frequencies = plain(10000.0, d);
      kvasir::rotate(found.data(), tokens, heads, d, frequencies.data(), pairs, first, 1.0);
      for (int t = 0; t < tokens; ++t) {
        for (int h = 0; h < heads; ++h) {
          for (int j = 0; j < d / 2; ++j) {
            const Real angle = (first + t) * frequency(10000, j, d);
            const auto [a, b] = channels(pairs, j, d);
            const size_t at = static_cast<size_t>(t * heads + h) * d;
            const Real x = rows[at + a], y = rows[at + b];
            // Angles to 1e-9, then one rounding to float32.
            const Real tolerance = (1e-9L + 6e-8L) * (std::fabs(x) + std::fabs(y));
            CHECK(std::fabs(found[at + a] - (x * std::cos(angle) - y * std::sin(angle))) <= tolerance);
            CHECK(std::fabs(found[at + b] - (x * std::sin(angle) + y * std::cos(angle))) <= tolerance);
          }
        }
      }
    }
  }
}

TEST_CASE("rope: turns, and a page's queries in place of its keys") {
  const int d = 128, half = d / 2;
  const auto frequencies = plain(10000.0, d);
  const double magnitude = 1.25;
  const kvasir::Turns turns(frequencies.data(), d, magnitude);
  std::vector<float> cosine(half), sine(half);
  for (const int64_t position : {int64_t{0}, int64_t{127}, int64_t{131072}, int64_t{1000000}, int64_t{-777777}}) {
    turns.at(position, cosine.data(), sine.data());
    for (int j = 0; j < half; ++j) {
      const Real angle = position * frequency(10000, j, d);
      CHECK(std::fabs(cosine[j] - magnitude * std::cos(angle)) < 1.3e-7L);
      CHECK(std::fabs(sine[j] - magnitude * std::sin(angle)) < 1.3e-7L);
    }
  }
  turns.at(77, cosine.data(), sine.data());
  CHECK(std::vector<float>(turns.cosine(77), turns.cosine(77) + half) == cosine);
  CHECK(std::vector<float>(turns.sine(77), turns.sine(77) + half) == sine);

  const kvasir::Turns unit(frequencies.data(), d, 1.0);
  const auto q = support::float_rows(support::seed() + 1, 1, d), k = support::float_rows(support::seed() + 2, 1, d);
  const int64_t page = 999936;
  for (const int t : {0, 1, 64, 127}) {
    auto turned_key = k, turned_query = q;
    unit.at(-page, cosine.data(), sine.data());
    kvasir::turn_planar(cosine.data(), sine.data(), half, turned_query.data());
    kvasir::turn_planar(unit.cosine(t), unit.sine(t), half, turned_key.data());
    Real found = 0, expected = 0, bound = 0;
    for (int c = 0; c < d; ++c) found += Real(turned_query[c]) * turned_key[c];
    for (int j = 0; j < half; ++j) {
      const Real angle = (page + t) * frequency(10000, j, d);
      const Real re = k[j] * std::cos(angle) - k[half + j] * std::sin(angle);
      const Real im = k[j] * std::sin(angle) + k[half + j] * std::cos(angle);
      expected += q[j] * re + q[half + j] * im;
      bound += (std::fabs(Real(q[j])) + std::fabs(Real(q[half + j]))) *
               (std::fabs(Real(k[j])) + std::fabs(Real(k[half + j])));
    }
    // Two turns in float32: a rounding of each cosine and sine, of each product and of each sum.
    CHECK(std::fabs(found - expected) < 8 * 6e-8L * bound);
  }
}

TEST_CASE("rope: planar rows") {
  const int d = 32;
  const auto row = support::float_rows(support::seed(), 1, d);
  std::vector<float> planar(d), back(d);
  for (const RopePairs pairs : kBoth) {
    kvasir::to_planar(pairs, d, row.data(), planar.data());
    for (int j = 0; j < d / 2; ++j) {
      CHECK(planar[j] == row[channels(pairs, j, d).first]);
      CHECK(planar[d / 2 + j] == row[channels(pairs, j, d).second]);
    }
    kvasir::from_planar(pairs, d, planar.data(), back.data());
    CHECK(back == row);
  }
}

TEST_CASE("rope: numbers that make no sense are refused") {
  std::vector<double> f = plain(10000.0, 64);
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  CHECK_THROWS_AS(kvasir::rope_frequencies(1.0, 64, f.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::rope_frequencies(infinity, 64, f.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::rope_frequencies(10000.0, 40, f.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::rope_frequencies(10000.0, 64, nullptr), kvasir::Error);
  CHECK_THROWS_AS(kvasir::scale_rope_linear(0.5, 64, f.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::scale_rope_linear(nan, 64, f.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::scale_rope_llama3(8.0, 4.0, 4.0, 8192.0, 64, f.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::scale_rope_llama3(8.0, 1.0, 4.0, 0.0, 64, f.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::scale_rope_yarn(1e6, 4.0, 1.0, 32.0, 32768.0, 64, f.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::scale_rope_yarn(1e6, 4.0, 32.0, 1.0, infinity, 64, f.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::Turns(f.data(), 64, 0.0), kvasir::Error);
  f[3] = nan;
  CHECK_THROWS_AS(kvasir::scale_rope_linear(2.0, 64, f.data()), kvasir::Error);
  CHECK_THROWS_AS(kvasir::Turns(f.data(), 64, 1.0), kvasir::Error);
}
