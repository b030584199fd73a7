// Encoding and decoding of keys against dense centres in double precision, and what the method is named for: RoPE
// before or after decoding is the same.
#include <cmath>
#include <limits>
#include <vector>

#include "base/rope.h"
#include "kvasir/commvq.h"
#include "kvasir/error.h"
#include "kvasir/rope.h"
#include "reference/commvq.h"
#include "reference/half.h"
#include "support/commvq_scene.h"
#include "support/doctest.h"
#include "support/effort.h"

namespace {

using kvasir::KeyCodebook;
using kvasir::RopePairs;
using support::EncodedKeys;
using support::KeyTraining;
using support::Owned;

// A codebook with random tables: encoding must be right for any.
struct Scene {
  KeyTraining training;
  std::vector<float> tables, rows;
  Owned<KeyCodebook> codebook;

  Scene(int kv_heads, int head_dim, int stages, int entries, RopePairs pairs, int tokens)
      : training{kv_heads, head_dim, stages, entries, pairs} {
    tables = support::float_rows(support::seed(), kv_heads * stages * entries, head_dim, 0.5);
    for (size_t i = 0; i < tables.size(); ++i) {
      tables[i] = support::round_to_half(tables[i] * std::pow(0.7, i / (entries * head_dim) % stages));
    }
    rows = support::half_rows(support::Profile::kOutliers, support::seed() + 1, tokens, kv_heads * head_dim);
    codebook = training.codebook(tables);
  }
  int width() const { return training.kv_heads * training.head_dim; }
  bool halves() const { return training.pairs == RopePairs::kHalves; }
  std::vector<reference::ComplexRow> table(int head, int stage) const {
    const size_t size = static_cast<size_t>(training.entries) * training.head_dim;
    return reference::complex_table(tables.data() + (head * training.stages + stage) * size, training.entries,
                                    training.head_dim);
  }
  // The key that codes and norm stand for.
  reference::ComplexRow decoded(const EncodedKeys& encoded, int token, int head) const {
    reference::ComplexRow sum(training.head_dim / 2);
    for (int r = 0; r < training.stages; ++r) {
      const auto code = reference::key_code(encoded.codes.data(), training.kv_heads, training.stages, training.entries,
                                            token, head, r);
      const auto part = reference::centre(table(head, r), code.a, code.b);
      for (size_t j = 0; j < sum.size(); ++j) sum[j] += part[j];
    }
    for (auto& x : sum) x *= reference::half_value(encoded.norms[token]);
    return sum;
  }
};

}  // namespace

TEST_CASE("commvq keys: each stage takes the nearest of its centres") {
  for (const int entries : {16, 32, 64}) {
    for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
      const int tokens = entries == 64 ? 3 : 131;
      const Scene scene(2, 48, 3, entries, pairs, tokens);
      const EncodedKeys encoded(*scene.codebook, scene.rows);
      CHECK(encoded.codes.size() ==
            static_cast<size_t>((tokens + 127) / 128) * 2 * 3 * 32 * std::lround(std::log2(entries)));
      for (int t = 0; t < tokens; t += 5) {
        double square = 0.0;
        for (int c = 0; c < scene.width(); ++c) square += std::pow(scene.rows[t * scene.width() + c], 2);
        const double norm = std::sqrt(square / scene.width());
        const double stored = reference::half_value(encoded.norms[t]);
        CHECK(std::fabs(stored - norm) <= norm * 0x1p-11);
        for (int h = 0; h < 2; ++h) {
          auto rest = reference::complex_row(scene.rows.data() + t * scene.width() + h * 48, 48, scene.halves());
          for (auto& x : rest) x /= stored;
          for (int r = 0; r < 3; ++r) {
            const auto table = scene.table(h, r);
            double least = 1e300;
            for (int a = 0; a < entries; ++a) {
              for (int b = 0; b < entries; ++b) {
                least = std::min(least, reference::squared_distance(rest, reference::centre(table, a, b)));
              }
            }
            const auto code = reference::key_code(encoded.codes.data(), 2, 3, entries, t, h, r);
            const auto chosen = reference::centre(table, code.a, code.b);
            // As near as float32 can tell.
            CHECK(reference::squared_distance(rest, chosen) <= least + 1e-5 * (1.0 + least));
            for (size_t j = 0; j < rest.size(); ++j) rest[j] -= chosen[j];
          }
        }
      }
      // Codes after the last token are 0.
      if (tokens % 128 != 0) {
        const auto code =
            reference::key_code(encoded.codes.data(), 2, 3, entries, (tokens + 127) / 128 * 128 - 1, 1, 2);
        CHECK(code.a == 0);
        CHECK(code.b == 0);
      }
    }
  }
}

TEST_CASE("commvq keys: decoding is the sum of the centres times the norm") {
  for (const int entries : {16, 32, 64}) {
    for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
      const Scene scene(3, 32, 5, entries, pairs, 200);
      EncodedKeys encoded(*scene.codebook, scene.rows);
      // Any codes are codes of some key.
      support::Random random(support::seed());
      for (uint8_t& byte : encoded.codes) byte = static_cast<uint8_t>(random.next());
      const auto rows = encoded.decode(*scene.codebook);
      for (int t = 0; t < 200; ++t) {
        for (int h = 0; h < 3; ++h) {
          const auto expected = scene.decoded(encoded, t, h);
          const auto found = reference::complex_row(rows.data() + t * scene.width() + h * 32, 32, scene.halves());
          const double scale = reference::half_value(encoded.norms[t]);
          for (size_t j = 0; j < found.size(); ++j) CHECK(std::abs(found[j] - expected[j]) <= 2e-5 * scale);
        }
      }
    }
  }
}

TEST_CASE("commvq keys: rotating a decoded key is decoding a rotated one") {
  const int d = 128, tokens = 64;
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
    const KeyTraining training = {1, d, 4, 64, pairs};
    std::vector<double> frequencies(d / 2);
    kvasir::rope_frequencies(10000.0, d, frequencies.data());
    const auto tables = support::float_rows(support::seed(), 4 * 64, d, 0.25);
    const auto rows = support::float_rows(support::seed() + 1, tokens, d);
    const auto codebook = training.codebook(tables);
    const EncodedKeys encoded(*codebook, rows);
    std::vector<float> exact(tables.size());
    codebook->read_tables(exact.data());
    const auto decoded = encoded.decode(*codebook);
    for (const int64_t position : {int64_t{1}, int64_t{4097}, int64_t{1000000}}) {
      // The rotated table in double: multiplication by e^(i position frequency) vector by vector.
      for (int t = 0; t < tokens; ++t) {
        std::vector<float> rotated(decoded.begin() + t * d, decoded.begin() + (t + 1) * d);
        kvasir::rotate(rotated.data(), 1, 1, d, frequencies.data(), pairs, position, 1.0);
        reference::ComplexRow sum(d / 2);
        for (int r = 0; r < 4; ++r) {
          const auto code = reference::key_code(encoded.codes.data(), 1, 4, 64, t, 0, r);
          auto table = reference::complex_table(exact.data() + static_cast<size_t>(r) * 64 * d, 64, d);
          // Once for each vector, also where both indices name the same.
          const auto turn = [&](int e) {
            for (int j = 0; j < d / 2; ++j) table[e][j] *= std::polar(1.0, position * frequencies[j]);
          };
          turn(code.a);
          if (code.b != code.a) turn(code.b);
          const auto part = reference::centre(table, code.a, code.b);
          for (int j = 0; j < d / 2; ++j) sum[j] += part[j];
        }
        const auto found = reference::complex_row(rotated.data(), d, pairs == RopePairs::kHalves);
        for (int j = 0; j < d / 2; ++j) {
          CHECK(std::abs(found[j] - sum[j] * reference::half_value(encoded.norms[t])) < 1e-6);
        }
      }
    }
  }
}

TEST_CASE("commvq keys: refinement never raises the error") {
  const Scene scene(2, 64, 6, 32, RopePairs::kHalves, 256);
  double before = 1e300, greedy = 0.0;
  for (const int refinements : {0, 1, 2, 4, 8}) {
    const EncodedKeys encoded(*scene.codebook, scene.rows, refinements);
    const auto decoded = encoded.decode(*scene.codebook);
    double error = 0.0;  // of normalised keys: what refinement minimises
    for (int t = 0; t < 256; ++t) {
      const double norm = reference::half_value(encoded.norms[t]);
      for (int c = 0; c < 128; ++c) error += std::pow((scene.rows[t * 128 + c] - decoded[t * 128 + c]) / norm, 2);
    }
    CHECK(error <= before * (1 + 1e-6));
    if (refinements == 0) greedy = error;
    before = error;
  }
  CHECK(before < 0.99 * greedy);
}

TEST_CASE("commvq keys: rows of zeros and tiny rows decode to nothing much") {
  const Scene scene(1, 32, 2, 16, RopePairs::kHalves, 128);
  std::vector<float> rows(2 * 32, 0.0f);
  rows[32] = 0x1p-24f;  // its mean square rounds to no float16 but 0
  const EncodedKeys encoded(*scene.codebook, rows);
  CHECK(encoded.norms == std::vector<uint16_t>{0, 0});
  CHECK(encoded.decode(*scene.codebook) == std::vector<float>(64, 0.0f));
  // The largest rows that caches accept have a norm that float16 holds.
  const EncodedKeys large(*scene.codebook, std::vector<float>(32, 32752.0f));
  CHECK(reference::half_value(large.norms[0]) == 32752.0);
}

TEST_CASE("commvq keys: tables are float16 values and survive") {
  const KeyTraining training = {1, 32, 1, 16};
  const auto tables = support::float_rows(support::seed(), 16, 32);
  std::vector<float> found(tables.size()), expected;
  for (const float x : tables) expected.push_back(support::round_to_half(x));
  training.codebook(tables)->read_tables(found.data());
  CHECK(found == expected);
}

TEST_CASE("commvq keys: what makes no sense is refused") {
  using kvasir::Error;
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> tables(16 * 32, 0.5f);
  const auto make = [&](int heads, int d, int pairs, int stages, int entries) {
    Owned<KeyCodebook>(KeyCodebook::create(heads, d, static_cast<RopePairs>(pairs), stages, entries, tables.data()));
  };
  CHECK_THROWS_AS(make(0, 32, 0, 1, 16), Error);
  CHECK_THROWS_AS(make(1, 40, 0, 1, 16), Error);
  CHECK_THROWS_AS(make(1, 32, 2, 1, 16), Error);
  CHECK_THROWS_AS(make(1, 32, 0, 0, 16), Error);
  CHECK_THROWS_AS(make(1, 32, 0, 65, 16), Error);
  CHECK_THROWS_AS(make(1, 32, 0, 1, 17), Error);
  CHECK_THROWS_AS(KeyCodebook::create(1, 32, RopePairs::kHalves, 1, 16, nullptr), Error);
  tables[5] = infinity;
  CHECK_THROWS_AS(make(1, 32, 0, 1, 16), Error);
  tables[5] = 70000.0f;
  CHECK_THROWS_AS(make(1, 32, 0, 1, 16), Error);
  tables[5] = 1.0f;
  const Owned<KeyCodebook> codebook(KeyCodebook::create(1, 32, RopePairs::kHalves, 1, 16, tables.data()));
  std::vector<float> rows(32, 1.0f);
  std::vector<uint8_t> codes(128);
  std::vector<uint16_t> norms(1);
  CHECK_THROWS_AS(codebook->encode(rows.data(), 0, 0, codes.data(), norms.data()), Error);
  CHECK_THROWS_AS(codebook->encode(rows.data(), 1, -1, codes.data(), norms.data()), Error);
  CHECK_THROWS_AS(codebook->encode(nullptr, 1, 0, codes.data(), norms.data()), Error);
  rows[31] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(codebook->encode(rows.data(), 1, 0, codes.data(), norms.data()), Error);
  norms[0] = 0x7C00;
  CHECK_THROWS_AS(codebook->decode(codes.data(), norms.data(), 1, rows.data()), Error);
  norms[0] = 0x8001;
  CHECK_THROWS_AS(codebook->decode(codes.data(), norms.data(), 1, rows.data()), Error);
}
