// Training of key tables: one step against the paper's equations, what is kept never gets worse, stages help, and the
// result is a function of data and seed.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kvasir/backend.h"
#include "kvasir/commvq_training.h"
#include "kvasir/error.h"
#include "reference/commvq.h"
#include "reference/half.h"
#include "support/commvq_scene.h"
#include "support/doctest.h"
#include "support/effort.h"

namespace {

using kvasir::KeyTrainer;
using kvasir::RopePairs;
using support::correlated_rows;
using support::EncodedKeys;
using support::KeyTraining;

double quantised(const KeyTraining& training, const std::vector<float>& tables, const std::vector<float>& rows,
                 int refinements = 0) {
  const auto codebook = training.codebook(tables);
  return support::mean_squared_error(EncodedKeys(*codebook, rows, refinements).decode(*codebook), rows);
}

// The first `stages` of a codebook's stages.
std::vector<float> first_stages(const KeyTraining& training, const std::vector<float>& tables, int stages) {
  std::vector<float> result;
  const size_t table = static_cast<size_t>(training.entries) * training.head_dim;
  for (int h = 0; h < training.kv_heads; ++h) {
    const auto begin = tables.begin() + h * training.stages * table;
    result.insert(result.end(), begin, begin + stages * table);
  }
  return result;
}

}  // namespace

TEST_CASE("commvq training: one step is the paper's") {
  // As many tokens as entries: the table begins with every token, in order, divided by 1 + i.
  const int entries = 16, d = 32;
  for (const double temperature : {1.0, 0.05, 0.01}) {
    const auto rows = correlated_rows(support::seed(), 7, entries, d);
    KeyTraining training = {1, d, 1, entries};
    training.steps = 1;
    const auto trainer = training.trainer(rows);
    trainer->set_temperatures(temperature, 1e-3, 1e-5);
    while (trainer->step()) {
    }
    const auto found = reference::complex_table(training.tables(*trainer).data(), entries, d);

    std::vector<reference::ComplexRow> points, table;
    for (int t = 0; t < entries; ++t) {
      points.push_back(reference::complex_row(rows.data() + t * d, d, true));
      double square = 0.0;
      for (const auto& x : points.back()) square += std::norm(x);
      const double norm = reference::half_value(reference::half_nearest(std::sqrt(square / d)));
      for (auto& x : points.back()) x /= norm;
      table.push_back(points.back());
      for (auto& x : table.back()) x /= reference::Complex(1, 1);
    }
    const auto weights = reference::soft_assignment(points, table, temperature * std::sqrt(1.0 * d));
    const auto expected = reference::fit_table(points, weights, entries);
    for (int e = 0; e < entries; ++e) {
      // float32 weights, and at the end float16 numbers of eight bits: half of a last one is 2^-8 of the number at
      // most.
      for (int j = 0; j < d / 2; ++j) {
        const double bound = 2e-3 + 0x1p-8 * std::abs(expected[e][j]);
        CHECK(std::abs(found[e][j] - expected[e][j]) < bound);
      }
    }
  }
}

TEST_CASE("commvq training: what is kept never gets worse, and more stages lower the error") {
  const KeyTraining training = {2, 64, 6, 16};
  const auto rows = correlated_rows(support::seed(), 1, 1500, 2 * 64);
  const auto trainer = training.trainer(rows);
  const double infinity = std::numeric_limits<double>::infinity();
  double before[2] = {infinity, infinity}, done = -1.0;
  int stage[2] = {0, 0}, calls = 0;
  while (trainer->step()) {
    ++calls;
    CHECK(trainer->done() > done);
    done = trainer->done();
    for (int h = 0; h < 2; ++h) {
      if (trainer->stage(h) != stage[h]) {
        stage[h] = trainer->stage(h);
        before[h] = infinity;
      }
      CHECK(trainer->stage_error(h) <= before[h]);
      before[h] = trainer->stage_error(h);
    }
  }
  CHECK(done == 1.0);
  CHECK(calls <= 6 * (training.steps + 1));
  for (int h = 0; h < 2; ++h) {
    CHECK(trainer->stage(h) == 6);
    for (int r = 1; r <= 6; ++r) CHECK(trainer->error(h, r) < trainer->error(h, r - 1));
  }
  // The errors are those of the codebook: greedy encoding of the same keys, on the normalised scale.
  const auto tables = training.tables(*trainer);
  const auto codebook = training.codebook(tables);
  const EncodedKeys encoded(*codebook, rows);
  const auto decoded = encoded.decode(*codebook);
  for (int h = 0; h < 2; ++h) {
    double sum = 0.0;
    for (int t = 0; t < 1500; ++t) {
      for (int c = h * 64; c < h * 64 + 64; ++c) {
        sum += std::pow((rows[t * 128 + c] - decoded[t * 128 + c]) / reference::half_value(encoded.norms[t]), 2);
      }
    }
    CHECK(sum / (1500 * 64) == doctest::Approx(trainer->error(h, 6)).epsilon(1e-4));
  }
  // On keys that it has not seen, too.
  const auto fresh = correlated_rows(support::seed(), 2, 512, 2 * 64);
  double error = 1e300;
  for (int r = 1; r <= 6; ++r) {
    KeyTraining part = training;
    part.stages = r;
    const double next = quantised(part, first_stages(training, tables, r), fresh);
    CHECK(next < error);
    error = next;
  }
}

TEST_CASE("commvq training: EM steps earn their keep") {
  KeyTraining training = {1, 64, 1, 32};
  const auto rows = correlated_rows(support::seed(), 3, 2000, 64);
  training.steps = 1;
  const double start = quantised(training, training.train(rows), rows);
  training.steps = 50;
  CHECK(quantised(training, training.train(rows), rows) < 0.8 * start);
}

TEST_CASE("commvq training: a function of data and seed alone") {
  const int threads = kvasir::threads();
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
    KeyTraining training = {3, 32, 3, 16, pairs};
    training.steps = 12;
    const auto rows = correlated_rows(support::seed(), 4, 700, 96);
    kvasir::set_threads(1);
    const auto one = training.train(rows);
    kvasir::set_threads(5);
    const auto five = training.train(rows);
    kvasir::set_threads(threads);
    CHECK(one == five);
    // However the keys come in.
    const auto apart = support::Owned<KeyTrainer>(KeyTrainer::create(3, 32, pairs, 3, 16, 1));
    apart->set_steps(12);
    apart->add(rows.data(), 300);
    apart->add(rows.data() + 300 * 96, 400);
    while (apart->step()) {
    }
    CHECK(training.tables(*apart) == one);
    training.seed = 2;
    CHECK(training.train(rows) != one);
  }
}

TEST_CASE("commvq training: interleaved pairs are halves in another order") {
  const int d = 32;
  KeyTraining training = {1, d, 2, 16};
  training.steps = 10;
  const auto rows = correlated_rows(support::seed(), 5, 300, d);
  auto shuffled = rows;
  for (int t = 0; t < 300; ++t) {
    for (int j = 0; j < d / 2; ++j) {
      shuffled[t * d + 2 * j] = rows[t * d + j];
      shuffled[t * d + 2 * j + 1] = rows[t * d + d / 2 + j];
    }
  }
  const auto tables = training.train(rows);
  training.pairs = RopePairs::kNeighbours;
  const auto found = training.train(shuffled);
  // Norms add up in another order, which may move one by a bit of float16.
  for (size_t i = 0; i < tables.size(); ++i) CHECK(std::fabs(found[i] - tables[i]) < 0.02);
}

// Entries of a stage and RoPE pair, as whole numbers of their greatest common divisor.
TEST_CASE("commvq training: entries are bytes, but for those of the first stage") {
  const int d = 64, stages = 6, entries = 32;
  KeyTraining training = {2, d, stages, entries};
  training.steps = 6;
  const auto tables = training.train(correlated_rows(support::seed(), 6, 800, 2 * d));
  for (int h = 0; h < 2; ++h) {
    for (int j = 0; j < d / 2; ++j) {
      int64_t first_step = 0;
      for (int r = 0; r < stages; ++r) {
        int64_t divisor = 0, largest = 0;
        for (int e = 0; e < entries; ++e) {
          for (const int c : {j, j + d / 2}) {
            const float entry = tables[((static_cast<size_t>(h) * stages + r) * entries + e) * d + c];
            CHECK(entry == reference::half_value(reference::half_nearest(entry)));
            const auto number = static_cast<int64_t>(std::ldexp(std::fabs(entry), 24));
            divisor = std::gcd(divisor, number);
            largest = std::max(largest, number);
          }
        }
        REQUIRE(divisor > 0);
        CHECK(largest / divisor <= (r == 0 ? 127 * 64 : 127));
        // Stages count in powers of two of one step.
        while (divisor % 2 == 0) divisor /= 2;
        if (r == 0) first_step = divisor;
        CHECK(divisor == first_step);
        CHECK(divisor <= 7);
      }
    }
  }
}

TEST_CASE("commvq training: degenerate keys") {
  KeyTraining training = {1, 32, 2, 16};
  training.steps = 5;
  // All alike: one centre says it all, and the second stage has nothing to do.
  const std::vector<float> same(64 * 32, 1.5f);
  CHECK(quantised(training, training.train(same), same) < 1e-6);
  const std::vector<float> zero(64 * 32, 0.0f);
  CHECK(quantised(training, training.train(zero), zero) == 0.0);
  // Fewer different keys than centres are kept as they are, to the precision of tables.
  auto few = support::float_rows(support::seed(), 4, 32);
  for (int i = 0; i < 4; ++i) few.insert(few.end(), few.begin(), few.end());
  training.steps = 60;
  CHECK(quantised(training, training.train(few), few) < 1e-3);
}

TEST_CASE("commvq training: temperatures at both ends of their range give tables") {
  KeyTraining training = {2, 32, 2, 16};
  training.steps = 8;
  const auto rows = correlated_rows(support::seed(), 8, 200, 2 * 32);
  for (const double first : {1e-12, 1e6}) {
    for (const double last : {1e-12, 1e6}) {
      CAPTURE(first);
      CAPTURE(last);
      const auto trainer = training.trainer(rows);
      trainer->set_temperatures(first, last, last);
      while (trainer->step()) {
      }
      for (const float x : training.tables(*trainer)) REQUIRE(std::isfinite(x));
      for (int h = 0; h < 2; ++h) CHECK(trainer->error(h, 2) <= trainer->error(h, 0));
    }
  }
  // Beyond it float32 has no number to divide by.
  const auto trainer = training.trainer(rows);
  for (const double beyond : {1e-300, 0.9e-12, 1.1e6, 1e300}) {
    CAPTURE(beyond);
    CHECK_THROWS_AS(trainer->set_temperatures(beyond, 1e-3, 1e-5), kvasir::Error);
    CHECK_THROWS_AS(trainer->set_temperatures(1.0, beyond, 1e-5), kvasir::Error);
    CHECK_THROWS_AS(trainer->set_temperatures(1.0, 1e-3, beyond), kvasir::Error);
  }
}

TEST_CASE("commvq training: what makes no sense is refused") {
  using kvasir::Error;
  std::vector<float> rows(16 * 32, 1.0f);
  CHECK_THROWS_AS(KeyTrainer::create(1, 32, RopePairs::kHalves, 1, 12, 1), Error);
  const support::Owned<KeyTrainer> trainer(KeyTrainer::create(1, 32, RopePairs::kHalves, 1, 16, 1));
  CHECK_THROWS_AS(trainer->set_steps(0), Error);
  CHECK_THROWS_AS(trainer->set_temperatures(1.0, 0.0, 1e-5), Error);
  CHECK_THROWS_AS(trainer->set_temperatures(1.0, 1e-3, std::nan("")), Error);
  CHECK_THROWS_AS(trainer->add(nullptr, 1), Error);
  CHECK_THROWS_AS(trainer->add(rows.data(), 0), Error);
  trainer->add(rows.data(), 15);
  CHECK_THROWS_AS(trainer->step(), Error);
  CHECK_THROWS_AS(trainer->error(0, 0), Error);
  CHECK_THROWS_AS(trainer->stage(1), Error);
  std::vector<float> tables(16 * 32);
  CHECK_THROWS_AS(trainer->read_tables(tables.data()), Error);
  rows[3] = std::numeric_limits<float>::infinity();
  CHECK_THROWS_AS(trainer->add(rows.data(), 1), Error);
  trainer->add(rows.data() + 32, 1);
  CHECK(trainer->tokens() == 16);
  CHECK(trainer->step());
  trainer->read_tables(tables.data());
  CHECK_THROWS_AS(trainer->add(rows.data() + 32, 1), Error);
  CHECK_THROWS_AS(trainer->set_steps(5), Error);
  CHECK_THROWS_AS(trainer->error(0, 1), Error);
}
