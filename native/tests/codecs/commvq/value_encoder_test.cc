// The value encoder against double precision, and its training.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kvasir/backend.h"
#include "kvasir/commvq.h"
#include "kvasir/error.h"
#include "reference/commvq.h"
#include "support/commvq_scene.h"
#include "support/doctest.h"
#include "support/effort.h"

namespace {

using kvasir::ValueEncoder;
using kvasir::ValueTrainer;
using support::correlated_rows;
using support::Owned;

reference::Encoder empty_encoder(int width, int hidden, int codes) {
  const auto room = [](size_t count) { return std::vector<float>(count); };
  const size_t w = width, h = hidden, n = codes;
  return {width, hidden, codes, room(w), room(w), room(w), room(h * w), room(h), room(2 * n * h), room(2 * n)};
}

reference::Encoder random_encoder(uint64_t seed, int width, int hidden, int codes) {
  reference::Encoder encoder = empty_encoder(width, hidden, codes);
  uint64_t next = seed;
  for (auto* part : {&encoder.scale, &encoder.norm_weight, &encoder.norm_bias, &encoder.first_weight,
                     &encoder.first_bias, &encoder.second_weight, &encoder.second_bias}) {
    *part = support::float_rows(++next, 1, static_cast<int>(part->size()), 0.3);
  }
  for (float& x : encoder.scale) x = std::exp2(4.0f * x);
  return encoder;
}

Owned<ValueEncoder> make(const reference::Encoder& e) {
  return Owned<ValueEncoder>(ValueEncoder::create(e.width, e.hidden, e.codes, e.scale.data(), e.norm_weight.data(),
                                                  e.norm_bias.data(), e.first_weight.data(), e.first_bias.data(),
                                                  e.second_weight.data(), e.second_bias.data()));
}

struct Trained {
  reference::Encoder encoder;
  std::vector<float> table;

  explicit Trained(const ValueTrainer& trainer, int width, int hidden, int codes)
      : encoder(empty_encoder(width, hidden, codes)), table(static_cast<size_t>(codes) * width) {
    reference::Encoder& e = encoder;
    trainer.read(e.scale.data(), e.norm_weight.data(), e.norm_bias.data(), e.first_weight.data(), e.first_bias.data(),
                 e.second_weight.data(), e.second_bias.data(), table.data());
  }
};

}  // namespace

TEST_CASE("commvq encoder: bits are those of double precision") {
  const int width = 48, hidden = 70, codes = 80, tokens = 600;
  const reference::Encoder encoder = random_encoder(support::seed(), width, hidden, codes);
  auto rows = correlated_rows(support::seed(), 1, tokens, width);
  std::fill(rows.begin(), rows.begin() + width, 0.0f);
  std::vector<uint8_t> bits(tokens * codes / 8, 0xAA);
  make(encoder)->encode(rows.data(), tokens, bits.data());
  int close = 0;
  for (int t = 0; t < tokens; ++t) {
    const auto logits = encoder.logits(rows.data() + t * width);
    for (int pair = 0; pair < codes / 2; ++pair) {
      const int first = reference::bits_at(bits.data(), static_cast<size_t>(t) * codes + 2 * pair, 1);
      const int second = reference::bits_at(bits.data(), static_cast<size_t>(t) * codes + 2 * pair + 1, 1);
      const double* four = logits.data() + 4 * pair;
      const double most = *std::max_element(four, four + 4);
      int chosen = 0;
      while (reference::kClassBits[chosen][0] != first || reference::kClassBits[chosen][1] != second) ++chosen;
      // Logits are sums of about 50 terms of size 1 over 70 units, in float32.
      CHECK(four[chosen] >= most - 2e-5);
      close += four[chosen] != most;
    }
  }
  CHECK(close < 5);
}

TEST_CASE("commvq encoder: training lowers the error, on unseen values too") {
  const int width = 64, hidden = 96, codes = 64, steps = support::repeat(400);
  const auto rows = correlated_rows(support::seed(), 1, 1500, width),
             fresh = correlated_rows(support::seed(), 2, 512, width);
  const Owned<ValueTrainer> trainer(ValueTrainer::create(width, hidden, codes, 7));
  trainer->set_steps(steps);
  trainer->set_batch(64);
  trainer->set_learning_rate(3e-3);
  trainer->add(rows.data(), 1000);
  trainer->add(rows.data() + 1000 * width, 500);
  CHECK(trainer->tokens() == 1500);
  double first = 0.0;
  while (trainer->step()) {
    if (first == 0.0) first = trainer->batch_error();
  }
  CHECK(trainer->done() == 1.0);
  const Trained trained(*trainer, width, hidden, codes);
  support::ValueFit fit = {width, codes};
  fit.table = trained.table;
  const auto codebook = fit.codebook();
  support::EncodedValues encoded(*codebook, fresh);
  make(trained.encoder)->encode(fresh.data(), 512, encoded.bits.data());
  double before = 1e300;
  for (const int flips : {0, 4, 100000}) {
    codebook->refine(fresh.data(), 512, flips, encoded.bits.data(), encoded.gains.data());
    const double error = support::mean_squared_error(encoded.decode(*codebook), fresh);
    CHECK(error < before);
    before = error;
    if (support::effort() >= 1.0) {
      CHECK(error < 0.2 * first);
      CHECK(error < support::uniform_error(fresh, width, width, false, 1));
    }
  }
}

TEST_CASE("commvq encoder: steps of training are those of double precision") {
  const int width = 16, hidden = 12, codes = 16, batch = 8, steps = 40;
  const auto rows = correlated_rows(support::seed(), 5, 50, width, 4);
  const auto table = support::float_rows(support::seed() + 1, codes, width, 0.5);
  reference::EncoderTraining expected = {width, hidden, codes, batch, steps, 11, 2e-3, 0.05, rows, {}, {}, {}, {}};
  expected.start(table);
  const Owned<ValueTrainer> trainer(ValueTrainer::create(width, hidden, codes, 11));
  trainer->set_steps(steps);
  trainer->set_batch(batch);
  trainer->set_learning_rate(2e-3);
  trainer->set_weight_decay(0.05);
  trainer->set_table(table.data());
  trainer->add(rows.data(), 50);
  for (int step = 0; step < 6; ++step) {
    CHECK(trainer->step());
    const double error = expected.run(step);
    CHECK(trainer->batch_error() == doctest::Approx(error).epsilon(1e-4));
  }
  const Trained found(*trainer, width, hidden, codes);
  const std::vector<float>* parts[] = {&found.encoder.norm_weight,
                                       &found.encoder.norm_bias,
                                       &found.encoder.first_weight,
                                       &found.encoder.first_bias,
                                       &found.encoder.second_weight,
                                       &found.encoder.second_bias,
                                       &found.table};
  for (int p = 0; p < 7; ++p) {
    CAPTURE(p);
    // Six steps of at most 2e-3 each: a derivative of the wrong sign or a missing term would be off by that.
    double off = 0.0, moved = 0.0;
    for (size_t i = 0; i < parts[p]->size(); ++i) {
      off = std::max(off, std::fabs((*parts[p])[i] - expected.values[p][i]));
      moved = std::max(moved, std::fabs(expected.first[p][i]));
    }
    CHECK(moved > 0.0);
    CHECK(off < 2e-5);
  }
}

TEST_CASE("commvq encoder: rows of zeros, or all but, teach nothing") {
  const int width = 32, hidden = 24, codes = 16;
  const auto table = support::float_rows(support::seed(), codes, width, 0.5);
  for (const float most : {0.0f, std::numeric_limits<float>::denorm_min()}) {
    CAPTURE(most);
    std::vector<float> rows(16 * width, 0.0f);
    for (int t = 0; t < 16; ++t) rows[t * width + t] = most;
    const Owned<ValueTrainer> trainer(ValueTrainer::create(width, hidden, codes, 3));
    trainer->set_table(table.data());
    trainer->add(rows.data(), 16);
    for (int step = 0; step < 3; ++step) CHECK(trainer->step());
    CHECK(trainer->batch_error() == 0.0);
    CHECK(Trained(*trainer, width, hidden, codes).table == table);
  }
  // One beside small values, whose squares are far less than 1, does not drown what these teach.
  const auto error = [&](bool zeros) {
    auto rows = correlated_rows(support::seed(), 8, 64, width);
    for (float& x : rows) x *= 1e-3f;
    if (zeros) std::fill(rows.begin(), rows.begin() + width, 0.0f);
    const Owned<ValueTrainer> trainer(ValueTrainer::create(width, hidden, codes, 3));
    trainer->set_steps(200);
    trainer->set_batch(32);
    trainer->set_learning_rate(3e-3);
    trainer->add(rows.data(), 64);
    double sum = 0.0;
    for (int step = 0; step < 200; ++step) {
      trainer->step();
      if (step >= 150) sum += trainer->batch_error();
    }
    return sum;
  };
  const double without = error(false);
  CHECK(error(true) < 1.2 * without);
}

TEST_CASE("commvq encoder: training is a function of data and seed") {
  const auto rows = correlated_rows(support::seed(), 3, 100, 32);
  const int threads = kvasir::threads();
  const auto train = [&](int count, int64_t seed) {
    kvasir::set_threads(count);
    const Owned<ValueTrainer> trainer(ValueTrainer::create(32, 40, 32, seed));
    trainer->set_steps(5);
    trainer->set_batch(16);
    trainer->add(rows.data(), 100);
    while (trainer->step()) {
    }
    kvasir::set_threads(threads);
    return Trained(*trainer, 32, 40, 32);
  };
  const Trained one = train(1, 1), five = train(5, 1), other = train(1, 2);
  CHECK(one.table == five.table);
  CHECK(one.encoder.second_weight == five.encoder.second_weight);
  CHECK(one.encoder.norm_weight == five.encoder.norm_weight);
  CHECK(one.table != other.table);
}

TEST_CASE("commvq encoder: what makes no sense is refused") {
  using kvasir::Error;
  reference::Encoder encoder = random_encoder(1, 32, 16, 16);
  CHECK_NOTHROW(make(encoder));
  encoder.scale[3] = 0.0f;
  CHECK_THROWS_AS(make(encoder), Error);
  encoder.scale[3] = 1.0f;
  encoder.second_bias[1] = std::nanf("");
  CHECK_THROWS_AS(make(encoder), Error);
  encoder.second_bias[1] = 0.0f;
  encoder.hidden = 0;
  CHECK_THROWS_AS(make(encoder), Error);
  const Owned<ValueTrainer> trainer(ValueTrainer::create(32, 16, 16, 1));
  CHECK_THROWS_AS(trainer->set_steps(0), Error);
  CHECK_THROWS_AS(trainer->set_batch(0), Error);
  CHECK_THROWS_AS(trainer->set_learning_rate(0.0), Error);
  CHECK_THROWS_AS(trainer->set_weight_decay(-1.0), Error);
  CHECK_THROWS_AS(trainer->set_temperature(std::nan("")), Error);
  std::vector<float> rows(16 * 32, 1.0f);
  trainer->add(rows.data(), 15);
  CHECK_THROWS_AS(trainer->step(), Error);
  CHECK_THROWS_AS(trainer->read(rows.data(), rows.data(), rows.data(), rows.data(), rows.data(), rows.data(),
                                rows.data(), rows.data()),
                  Error);
  rows[0] = std::numeric_limits<float>::infinity();
  CHECK_THROWS_AS(trainer->add(rows.data(), 1), Error);
  trainer->add(rows.data() + 32, 1);
  CHECK(trainer->step());
  CHECK_THROWS_AS(trainer->add(rows.data() + 32, 1), Error);
  CHECK_THROWS_AS(trainer->set_batch(5), Error);
}

TEST_CASE("commvq encoder: temperatures at both ends of their range give weights") {
  const int width = 32, hidden = 24, codes = 16;
  const auto rows = correlated_rows(support::seed(), 6, 64, width);
  for (const double temperature : {1e-12, 1e6}) {
    CAPTURE(temperature);
    const Owned<ValueTrainer> trainer(ValueTrainer::create(width, hidden, codes, 3));
    trainer->set_steps(40);
    trainer->set_batch(16);
    trainer->set_temperature(temperature);
    trainer->add(rows.data(), 64);
    while (trainer->step()) {
    }
    CHECK(std::isfinite(trainer->batch_error()));
    const Trained trained(*trainer, width, hidden, codes);
    for (const auto* part : {&trained.table, &trained.encoder.first_weight, &trained.encoder.second_weight}) {
      for (const float x : *part) REQUIRE(std::isfinite(x));
    }
  }
  // Beyond it numbers divided by the temperature leave float32.
  const Owned<ValueTrainer> trainer(ValueTrainer::create(width, hidden, codes, 3));
  for (const double beyond : {1e-300, 1e-38, 0.9e-12, 1.1e6, 1e300}) {
    CAPTURE(beyond);
    CHECK_THROWS_AS(trainer->set_temperature(beyond), kvasir::Error);
  }
}
