// The paper's table 11 for data made here: at equal bits, codebooks against uniform quantisation, on tokens that the
// training has not seen.
#include <cstdio>
#include <vector>

#include "support/commvq_scene.h"
#include "support/doctest.h"
#include "support/effort.h"

TEST_CASE("commvq: a lower error than uniform quantisation at equal bits") {
  if (support::kSanitized) return;  // a matter of numbers, and slow
  const int heads = 2, d = 128, width = heads * d;
  // Less under sanitizers.
  const int tokens = support::effort() < 1.0 ? 400 : 1200;
  const auto rows = support::correlated_rows(support::seed(), 1, tokens, width);
  const auto fresh = support::correlated_rows(support::seed(), 2, 512, width);
  double power = 0.0;
  for (const float x : fresh) power += 1.0 * x * x / fresh.size();
  std::printf("mean squared error / mean square, unseen tokens; bits with norms and gains, without tables\n");
  support::KeyTraining training = {heads, d, 21, 64};
  training.steps = 8;
  const auto tables = training.train(rows);
  const size_t table = static_cast<size_t>(64) * d;
  for (const int bits : {1, 2}) {
    support::KeyTraining part = training;
    part.stages = bits == 1 ? 11 : 21;
    std::vector<float> used;
    for (int h = 0; h < heads; ++h) {
      used.insert(used.end(), tables.begin() + h * 21 * table, tables.begin() + (h * 21 + part.stages) * table);
    }
    const auto codebook = part.codebook(used);
    const double keys =
        support::mean_squared_error(support::EncodedKeys(*codebook, fresh, 2).decode(*codebook), fresh) / power;
    const double uniform_keys = support::uniform_error(fresh, width, d, true, bits) / power;
    support::ValueFit fit = {width, bits * width};
    fit.steps = 4;
    fit.run(rows);
    const auto value_codebook = fit.codebook();
    const double values =
        support::mean_squared_error(support::EncodedValues(*value_codebook, fresh).decode(*value_codebook), fresh) /
        power;
    const double uniform_values = support::uniform_error(fresh, width, d, false, bits) / power;
    std::printf("  %d bit: keys %.5f at %.2f bits, uniform %.5f at %.2f;  values %.5f at %.2f, uniform %.5f at %.2f\n",
                bits, keys, (12.0 * part.stages * heads + 16) / width, uniform_keys, bits + 32.0 / 128, values,
                bits + 16.0 / width, uniform_values, bits + 32.0 / 128);
    CHECK(keys < uniform_keys);
    CHECK(values < uniform_values);
  }
}
