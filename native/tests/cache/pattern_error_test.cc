// What patterns are for: how far errors fall on data with clusters, and that they never rise on data without.
#include <cmath>

#include "support/pattern_scene.h"

using kvasir::Side;

namespace {

constexpr int kDim = 128;
constexpr int kTokens = 4096;
constexpr int kClusters = 32;
constexpr double kSpread = 3.0;

const char* name_of(Side side) { return side == Side::kKeys ? "keys" : "values"; }

double mean_square_error(const support::LayerChoice& layer, const std::vector<float>& rows, Side side) {
  support::CacheChoice choice;
  choice.layers = {layer};
  const support::CachePointer cache = support::make_cache(choice);
  const int64_t id = cache->new_sequence();
  const auto tokens = static_cast<int64_t>(rows.size() / layer.row_size());
  cache->append(id, 0, rows.data(), rows.data(), tokens);
  const auto read = support::read_rows(*cache, id, 0, layer, side, 0, tokens);
  double sum = 0;
  for (size_t i = 0; i < rows.size(); ++i) sum += std::pow(static_cast<double>(read[i]) - rows[i], 2);
  return sum / static_cast<double>(rows.size());
}

// Mean over all groups (a channel over a page, or a token) of the squared range.
double squared_range(const std::vector<float>& rows, Side side) {
  double sum = 0;
  int groups = 0;
  const int page = 128;
  for (int first = 0; first < kTokens; first += side == Side::kKeys ? page : 1) {
    for (int channel = 0; channel < (side == Side::kKeys ? kDim : 1); ++channel) {
      double low = INFINITY, high = -INFINITY;
      for (int i = 0; i < (side == Side::kKeys ? page : kDim); ++i) {
        const double x = side == Side::kKeys ? rows[(first + i) * kDim + channel] : rows[first * kDim + i];
        low = std::min(low, x);
        high = std::max(high, x);
      }
      sum += (high - low) * (high - low);
      ++groups;
    }
  }
  return sum / groups;
}

support::LayerChoice uniform_layer(const support::LayerChoice& like) {
  support::LayerChoice layer = like;
  layer.keys.codec = layer.values.codec = "uniform";
  layer.keys.options.clear();
  layer.values.options.clear();
  return layer;
}

}  // namespace

// The prediction. A group of range R at L levels has a mean squared error of (R / L)^2 / 12, so errors fall as the mean
// squared range does when each token's true centre is taken away. That ratio is measured on the data itself. It is also
// known: of a total variance S^2 + 1 the noise is 1, and over the 128 independent channels of a token both ranges are
// those of 128 normals, so values fall to 1 / (S^2 + 1) = 0.1. Keys have fewer distinct centres in a page than tokens:
// a range of 32 instead of 128 normals (4.14 and 5.39 deviations) makes raw ranges up to 1.7 times narrower in the
// square.
//
// The tolerance. A step of D deviations of the noise makes the error depend on the place of the levels by at most
// 12 / pi^2 exp(-2 pi^2 / D^2): below 1 % for residuals (D = 1.8 at 2 bits); raw elements (D = 5.7) reach 66 %, with a
// sign that is random for each of 4096 groups, 1 % in all. Mined centres are means of about 128 tokens: 1 %. Sampling
// of 5e5 errors: 0.2 %. Together below 5 %.
TEST_CASE("pattern: errors fall by the share of the variance within clusters") {
  std::vector<float> centres;
  const auto rows = support::cluster_rows(3, kTokens, kDim, kClusters, kSpread, 0.0, &centres);
  std::vector<float> noise = rows;
  for (size_t i = 0; i < rows.size(); ++i) noise[i] -= centres[i];
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const double predicted = squared_range(noise, side) / squared_range(rows, side);
    const double known = 1 / (kSpread * kSpread + 1);
    CHECK(predicted >= known * 0.95);
    CHECK(predicted <= known * (side == Side::kKeys ? 1.7 : 1.05));
    for (const int bits : {2, 4}) {
      for (const double metric : {0.0, 1.0}) {
        const auto layer = support::pattern_layer(kDim, bits, {{"metric", metric}});
        const double flat = mean_square_error(layer, rows, side);
        const double raw = mean_square_error(uniform_layer(layer), rows, side);
        CHECK_MESSAGE(std::fabs(flat / raw / predicted - 1) <= 0.05, name_of(side), " ", bits, " bits, metric ", metric,
                      ": error falls to ", flat / raw, ", predicted ", predicted);
      }
    }
  }
}

// Patterns that are taken have narrower groups, so the expected error is lower. What remains is chance: N squared
// errors of uniform distribution have a relative deviation of sqrt(4 / (5 N)), two such sums sqrt(2) times that; four
// of them allowed.
TEST_CASE("pattern: never worse than without patterns where there is no structure") {
  for (const auto profile : {support::Profile::kNormal, support::Profile::kOutliers, support::Profile::kConstant}) {
    for (const int tokens : {128, 256, 2048}) {
      for (const double group : {32.0, 128.0}) {
        const auto layer = support::pattern_layer(64, 2, {{"group", group}});
        auto plain = uniform_layer(layer);
        plain.keys.options = {{"group", group}};
        plain.values.options = {{"group", group}};
        const auto& rows = support::half_rows(profile, 77, tokens, 64);
        const double allowed = 1 + 4 * std::sqrt(2 * 0.8 / static_cast<double>(rows.size()));
        for (const Side side : {Side::kKeys, Side::kValues}) {
          if (side == Side::kValues && group < 64) continue;  // the test looks at whole vectors
          const double flat = mean_square_error(layer, rows, side);
          const double raw = mean_square_error(plain, rows, side);
          CHECK_MESSAGE(flat <= raw * allowed, support::name_of(profile), ", ", tokens, " tokens, group ", group, ", ",
                        name_of(side), ": ", flat, " against ", raw);
        }
      }
    }
  }
}
