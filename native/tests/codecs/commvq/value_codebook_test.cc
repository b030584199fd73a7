// Encoding and decoding of values against their definition in double precision, and the fit of codebooks.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kvasir/backend.h"
#include "kvasir/commvq.h"
#include "kvasir/error.h"
#include "reference/commvq.h"
#include "reference/half.h"
#include "support/commvq_scene.h"
#include "support/doctest.h"
#include "support/effort.h"

namespace {

using kvasir::ValueCodebook;
using kvasir::ValueFitter;
using support::correlated_rows;
using support::EncodedValues;
using support::Owned;
using support::ValueFit;

// s C of one token, in double.
std::vector<double> sum_of(const ValueFit& fit, const std::vector<uint8_t>& bits, int token) {
  std::vector<double> sum(fit.width, 0.0);
  for (int n = 0; n < fit.codes; ++n) {
    if (reference::bits_at(bits.data(), static_cast<size_t>(token) * fit.codes + n, 1) == 0) continue;
    for (int c = 0; c < fit.width; ++c) sum[c] += fit.table[static_cast<size_t>(n) * fit.width + c];
  }
  return sum;
}

double squared_error(const float* row, const std::vector<double>& sum, double gain) {
  double error = 0.0;
  for (size_t c = 0; c < sum.size(); ++c) error += std::pow(row[c] - gain * sum[c], 2);
  return error;
}

ValueFit random_codebook(int width, int codes) {
  ValueFit fit = {width, codes};
  fit.table = support::float_rows(support::seed(), codes, width, 0.3);
  for (float& x : fit.table) x = support::round_to_half(x);
  return fit;
}

}  // namespace

TEST_CASE("commvq values: decoding is gain times the sum of the rows") {
  const ValueFit fit = random_codebook(48, 80);
  const auto codebook = fit.codebook();
  CHECK(codebook->bit_bytes(7) == 70);
  EncodedValues encoded(*codebook, support::float_rows(support::seed() + 1, 7, 48));
  support::Random random(support::seed());
  for (uint8_t& byte : encoded.bits) byte = static_cast<uint8_t>(random.next());
  const auto rows = encoded.decode(*codebook);
  for (int t = 0; t < 7; ++t) {
    const auto sum = sum_of(fit, encoded.bits, t);
    for (int c = 0; c < 48; ++c) {
      CHECK(std::fabs(rows[t * 48 + c] - reference::half_value(encoded.gains[t]) * sum[c]) < 2e-5);
    }
  }
}

TEST_CASE("commvq values: no bit can be flipped for the better, and the gain is the best") {
  const ValueFit fit = random_codebook(64, 96);
  const auto codebook = fit.codebook();
  const auto rows = correlated_rows(support::seed(), 1, 40, 64);
  const EncodedValues encoded(*codebook, rows);
  for (int t = 0; t < 40; ++t) {
    const float* row = rows.data() + t * 64;
    double square = 0.0;
    for (int c = 0; c < 64; ++c) square += 1.0 * row[c] * row[c];
    std::vector<float> normal;
    for (int c = 0; c < 64; ++c) normal.push_back(static_cast<float>(row[c] / std::sqrt(square / 64)));
    const auto sum = sum_of(fit, encoded.bits, t);
    const double error = squared_error(normal.data(), sum, 1.0);
    for (int n = 0; n < 96; ++n) {
      auto other = encoded.bits;
      other[(t * 96 + n) / 8] ^= static_cast<uint8_t>(1 << (n % 8));
      CHECK(squared_error(normal.data(), sum_of(fit, other, t), 1.0) >= error - 1e-4);
    }
    const double gain = reference::half_value(encoded.gains[t]);
    const double least = squared_error(row, sum, gain);
    for (const double factor : {0.995, 1.005}) CHECK(squared_error(row, sum, gain * factor) > least);
  }
}

TEST_CASE("commvq values: refinement never raises the error") {
  const ValueFit fit = random_codebook(64, 64);
  const auto codebook = fit.codebook();
  const auto rows = correlated_rows(support::seed(), 2, 60, 64);
  EncodedValues encoded(*codebook, rows);
  support::Random random(support::seed());
  for (uint8_t& byte : encoded.bits) byte = static_cast<uint8_t>(random.next());
  const auto start = encoded.bits;
  std::vector<double> before(60, 1e300);
  for (const int flips : {0, 1, 2, 5, 1000000}) {
    encoded.bits = start;
    codebook->refine(rows.data(), 60, flips, encoded.bits.data(), encoded.gains.data());
    if (flips == 0) CHECK(encoded.bits == start);
    for (int t = 0; t < 60; ++t) {
      double square = 0.0;
      for (int c = 0; c < 64; ++c) square += std::pow(rows[t * 64 + c], 2);
      std::vector<float> normal;
      for (int c = 0; c < 64; ++c) normal.push_back(static_cast<float>(rows[t * 64 + c] / std::sqrt(square / 64)));
      const double error = squared_error(normal.data(), sum_of(fit, encoded.bits, t), 1.0);
      CHECK(error <= before[t] + 1e-4);
      before[t] = error;
    }
  }
}

TEST_CASE("commvq values: rows of zeros, and the largest") {
  const ValueFit fit = random_codebook(32, 32);
  const auto codebook = fit.codebook();
  CHECK(EncodedValues(*codebook, std::vector<float>(64, 0.0f)).decode(*codebook) == std::vector<float>(64, 0.0f));
  const std::vector<float> large(32, 32752.0f);
  const auto decoded = EncodedValues(*codebook, large).decode(*codebook);
  for (const float x : decoded) CHECK(std::isfinite(x));
  CHECK(support::mean_squared_error(decoded, large) < 32752.0 * 32752.0);
}

TEST_CASE("commvq values: rows whose root mean square is below float32") {
  const ValueFit fit = random_codebook(64, 32);
  const auto codebook = fit.codebook();
  std::vector<float> tiny(64, 0.0f);
  tiny[3] = std::numeric_limits<float>::denorm_min();
  // They are what a row of zeros is.
  const EncodedValues encoded(*codebook, tiny), zeros(*codebook, std::vector<float>(64, 0.0f));
  CHECK(encoded.bits == zeros.bits);
  CHECK(encoded.decode(*codebook) == std::vector<float>(64, 0.0f));
  // One of them does not cost the others their codebook.
  auto rows = correlated_rows(support::seed(), 7, 200, 64);
  std::copy(tiny.begin(), tiny.end(), rows.begin() + 5 * 64);
  ValueFit fitted = {64, 64};
  fitted.run(rows);
  CHECK(fitted.error < support::mean_squared_error(rows, std::vector<float>(rows.size(), 0.0f)));
}

TEST_CASE("commvq values: a fit never gets worse, and its error is that of the codebook") {
  ValueFit fit = {64, 64};
  const auto rows = correlated_rows(support::seed(), 3, 900, 64);
  const Owned<ValueFitter> fitter(ValueFitter::create(64, 64));
  fitter->add(rows.data(), 400);
  fitter->add(rows.data() + 400 * 64, 500);
  double before = std::numeric_limits<double>::infinity(), first = 0.0, done = 0.0;
  CHECK(fitter->error() == before);
  while (fitter->step()) {
    CHECK(fitter->error() <= before);
    CHECK(fitter->done() > done);
    if (first == 0.0) first = fitter->error();
    before = fitter->error();
    done = fitter->done();
  }
  CHECK(done == 1.0);
  CHECK(before < first);
  fit.table.resize(64 * 64);
  fit.thresholds.resize(64);
  fitter->read_table(fit.table.data());
  fitter->read_thresholds(fit.thresholds.data());
  const auto codebook = fit.codebook();
  CHECK(support::mean_squared_error(EncodedValues(*codebook, rows).decode(*codebook), rows) ==
        doctest::Approx(before).epsilon(1e-4));
  // Tables come out as they are stored.
  std::vector<float> stored(fit.table.size());
  codebook->read_table(stored.data());
  CHECK(stored == fit.table);
  std::vector<float> thresholds(64);
  codebook->read_thresholds(thresholds.data());
  CHECK(thresholds == fit.thresholds);
}

TEST_CASE("commvq values: a fit is a function of its data") {
  const auto rows = correlated_rows(support::seed(), 4, 600, 96);
  const int threads = kvasir::threads();
  ValueFit one = {96, 96}, five = {96, 96};
  kvasir::set_threads(1);
  one.run(rows);
  kvasir::set_threads(5);
  five.run(rows);
  kvasir::set_threads(threads);
  CHECK(one.table == five.table);
  CHECK(one.thresholds == five.thresholds);
  CHECK(one.error == five.error);
}

TEST_CASE("commvq values: more codes lower the error") {
  const auto rows = correlated_rows(support::seed(), 5, 2000, 64), fresh = correlated_rows(support::seed(), 6, 512, 64);
  double before = 1e300, before_fresh = 1e300;
  for (const int codes : {16, 32, 64, 128}) {
    ValueFit fit = {64, codes};
    fit.run(rows);
    CHECK(fit.error < before);
    before = fit.error;
    const auto codebook = fit.codebook();
    const double error = support::mean_squared_error(EncodedValues(*codebook, fresh).decode(*codebook), fresh);
    CHECK(error < before_fresh);
    before_fresh = error;
  }
}

TEST_CASE("commvq values: degenerate data") {
  ValueFit fit = {32, 32};
  // All alike but for their norms: the constant says it all.
  std::vector<float> same;
  for (int t = 0; t < 40; ++t) same.insert(same.end(), 32, 0.25f * (1 + t % 3));
  fit.run(same);
  CHECK(fit.error < 1e-6);
  fit.run(std::vector<float>(40 * 32, 0.0f));
  CHECK(fit.error == 0.0);
  // More bits than there is anything to say.
  ValueFit rich = {16, 512};
  rich.run(support::float_rows(support::seed(), 100, 16));
  CHECK(rich.error < 1e-3);
}

TEST_CASE("commvq values: what makes no sense is refused") {
  using kvasir::Error;
  std::vector<float> table(32 * 32, 0.5f), rows(32 * 16, 1.0f);
  CHECK_THROWS_AS(ValueCodebook::create(20, 32, table.data(), nullptr), Error);
  CHECK_THROWS_AS(ValueCodebook::create(32, 8, table.data(), nullptr), Error);
  CHECK_THROWS_AS(ValueCodebook::create(32, 32, nullptr, nullptr), Error);
  std::vector<float> thresholds(32, std::nanf(""));
  CHECK_THROWS_AS(ValueCodebook::create(32, 32, table.data(), thresholds.data()), Error);
  table[7] = std::numeric_limits<float>::infinity();
  CHECK_THROWS_AS(ValueCodebook::create(32, 32, table.data(), nullptr), Error);
  table[7] = 0.0f;
  const Owned<ValueCodebook> codebook(ValueCodebook::create(32, 32, table.data(), nullptr));
  uint8_t bits[4] = {};
  uint16_t gain = 0;
  CHECK_THROWS_AS(codebook->encode(rows.data(), 0, bits, &gain), Error);
  CHECK_THROWS_AS(codebook->encode(rows.data(), 1, nullptr, &gain), Error);
  CHECK_THROWS_AS(codebook->refine(rows.data(), 1, -1, bits, &gain), Error);
  gain = 0xFC00;
  CHECK_THROWS_AS(codebook->decode(bits, &gain, 1, rows.data()), Error);
  CHECK_THROWS_AS(ValueFitter::create(32, 24), Error);
  const Owned<ValueFitter> fitter(ValueFitter::create(32, 32));
  CHECK_THROWS_AS(fitter->set_steps(0), Error);
  CHECK_THROWS_AS(fitter->read_table(table.data()), Error);
  fitter->add(rows.data(), 15);
  CHECK_THROWS_AS(fitter->step(), Error);
  rows[1] = std::nanf("");
  CHECK_THROWS_AS(fitter->add(rows.data(), 1), Error);
  fitter->add(rows.data() + 32, 1);
  CHECK(fitter->tokens() == 16);
  CHECK(fitter->step());
  CHECK_THROWS_AS(fitter->add(rows.data() + 32, 1), Error);
}
