// The whole-number tables that keys are added up from: no run of stages leaves 16 bits, whatever the codes, and what
// rounding costs is what fixed_tables.h says.
#include "codecs/commvq/fixed_tables.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "reference/half.h"
#include "support/commvq_scene.h"
#include "support/data.h"
#include "support/doctest.h"

using kvasir::commvq::FixedTables;

namespace {

struct Case {
  const char* name;
  int kv_heads, head_dim, stages, entries;
  double (*element)(support::Random& random, int stage, int channel);
};

double normal(support::Random& random, int, int) { return 0.3 * random.normal(); }

// Later stages describe what earlier ones left; some channels are loud, one is silent.
double trained(support::Random& random, int stage, int channel) {
  if (channel == 3) return 0.0;
  return random.normal() * std::pow(0.8, stage) * (channel % 17 == 5 ? 20.0 : 1.0);
}

// Every entry at the end of its range: all stages add up to the most there can be.
double constant(support::Random&, int, int channel) { return channel % 2 == 0 ? 65504.0 : -65504.0; }
double tiny(support::Random& random, int, int) { return 1e-7 * random.normal(); }
double nothing(support::Random&, int, int) { return 0.0; }

constexpr Case kCases[] = {
    {"one stage", 1, 32, 1, 16, normal},
    {"1 bit", 2, 128, 11, 64, normal},
    {"2 bits", 1, 128, 21, 64, normal},
    {"a padded chunk", 3, 80, 5, 32, normal},
    {"falling stages", 2, 64, 11, 64, trained},
    {"constant", 1, 48, 64, 16, constant},
    {"tiny", 1, 32, 4, 16, tiny},
    {"nothing", 1, 32, 3, 16, nothing},
};

}  // namespace

TEST_CASE("commvq: tables of whole numbers") {
  for (const Case& each : kCases) {
    CAPTURE(each.name);
    const int d = each.head_dim, half = d / 2;
    std::vector<float> tables(static_cast<size_t>(each.kv_heads) * each.stages * each.entries * d);
    support::Random random(17);
    for (size_t i = 0; i < tables.size(); ++i) {
      const int stage = static_cast<int>(i / d / each.entries) % each.stages;
      tables[i] = static_cast<float>(each.element(random, stage, static_cast<int>(i % d)));
    }
    const support::Owned<kvasir::KeyCodebook> codebook(kvasir::KeyCodebook::create(
        each.kv_heads, d, kvasir::RopePairs::kHalves, each.stages, each.entries, tables.data()));
    kvasir::commvq::FixedTablesMemory memory;
    const FixedTables fixed = memory.make(codebook->impl());

    REQUIRE(fixed.run >= 1);
    REQUIRE(fixed.run <= each.stages);
    REQUIRE(fixed.chunks == (half + 15) / 16);
    double worst_noise = 0.0;  // over kv heads, as a share of the power of keys
    for (int head = 0; head < each.kv_heads; ++head) {
      double noise = 0.0, power = 0.0, worst_rounding = 0.0;
      int largest_sum = 0, not_zero = 0;
      for (int j = 0; j < fixed.chunks * 16; ++j) {
        const double unit = fixed.units[head * fixed.chunks * 16 + j];
        std::vector<int> peaks(static_cast<size_t>(each.stages), 0);
        for (int s = 0; s < each.stages; ++s) {
          for (int e = 0; e < each.entries; ++e) {
            for (int part = 0; part < 2; ++part) {
              const size_t row =
                  ((static_cast<size_t>(head) * fixed.chunks + j / 16) * each.stages + s) * each.entries + e;
              const int stored = fixed.rows[row * 32 + j % 16 * 2 + part];
              peaks[s] = std::max(peaks[s], std::abs(stored));
              if (j >= half) {
                not_zero += stored != 0 || unit != 0.0;
                continue;
              }
              const size_t index =
                  ((static_cast<size_t>(head) * each.stages + s) * each.entries + e) * d + part * half + j;
              const double z = reference::half_value(reference::half_nearest(tables[index]));
              worst_rounding = std::max(worst_rounding, std::fabs(stored * unit - z) - 0.5 * unit * (1 + 1e-9));
              noise += 2 * (stored * unit - z) * (stored * unit - z) / each.entries;
              power += 2 * z * z / each.entries;
            }
          }
        }
        for (int first = 0; first < each.stages; first += fixed.run) {
          int sum = 0;
          for (int s = first; s < std::min(each.stages, first + fixed.run); ++s) sum += peaks[s];
          largest_sum = std::max(largest_sum, sum);
        }
      }
      CHECK(not_zero == 0);
      CHECK(worst_rounding <= 0.0);
      CHECK(largest_sum <= 32767);
      if (power > 0.0) worst_noise = std::max(worst_noise, noise / power);
    }
    // The promise is about rounding errors that are uniform between the halves of a unit: theirs is the variance, and
    // what was measured over thousands of entries is within a few parts in a hundred of it.
    if (fixed.run > 1) CHECK(worst_noise <= 1.2 * kvasir::commvq::kNoise);
  }
}

TEST_CASE("commvq: runs are no shorter than they must be") {
  // The two parts of 64 normal entries peak at about 2.75 deviations, so a run of n stages has a unit of 2.75 n / 32767
  // deviations and noise of 5.9e-10 n^2 of the power: runs of four stages are the longest below 1e-8, by a little.
  std::vector<float> tables(static_cast<size_t>(11) * 64 * 128);
  support::Random random(5);
  for (float& x : tables) x = static_cast<float>(random.normal());
  const support::Owned<kvasir::KeyCodebook> codebook(
      kvasir::KeyCodebook::create(1, 128, kvasir::RopePairs::kHalves, 11, 64, tables.data()));
  kvasir::commvq::FixedTablesMemory memory;
  const int run = memory.make(codebook->impl()).run;
  CHECK(run >= 3);
  CHECK(run <= 4);
}
