// Weights of every type, alone and in products, against values and sums in double precision.
#include "reference/weights.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kvasir/backend.h"
#include "kvasir/model.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/errors.h"
#include "support/formats.h"
#include "support/guarded.h"
#include "support/weights.h"

using kvasir::ErrorCode;
using kvasir::WeightType;

namespace {

constexpr int kRow = 512;  // whole blocks of every type

}  // namespace

// A scale is one product and a weight a second one; a minimum is a product, and what is left a difference: four
// roundings of the magnitudes at most.
TEST_CASE("weights: every type is widened as its bits say, on every level") {
  for (const WeightType type : support::kWeightTypes) {
    const int number = static_cast<int>(type);
    const auto row = support::random_weights(number + 1, type, 4 * kRow);
    for (const kvasir::Backend* backend : support::available_backends()) {
      INFO("type " << number << " on " << backend->name);
      for (const int begin : {0, 256, kRow}) {
        for (const int count : {256, 768, 1024}) {
          support::Guarded<float> out(count);
          backend->matrix->widen(type, row.data(), begin, count, out.data());
          int wrong = 0;
          for (int i = 0; i < count; ++i) {
            const reference::Weight expected = reference::weight_at(number, row.data(), begin + i);
            wrong += !(std::fabs(out[i] - expected.value()) <= 4 * 0x1p-24 * expected.magnitude());
          }
          CHECK(wrong == 0);
          CHECK(out.guards_intact());
        }
      }
    }
  }
}

TEST_CASE("weights: rows have the bytes of their blocks, and no others") {
  for (const WeightType type : support::kWeightTypes) {
    const int number = static_cast<int>(type);
    CHECK(kvasir::weight_row_bytes(type, 2 * kRow) ==
          2 * kRow / reference::block_weights(number) * reference::block_bytes(number));
  }
  CHECK(support::error_of(ErrorCode::kInvalidArgument, [] {
          kvasir::weight_row_bytes(WeightType::kQ4_K, 128);
        }).find("Q4_K") != std::string::npos);
  support::error_of(ErrorCode::kInvalidArgument, [] { kvasir::weight_row_bytes(WeightType::kQ4_0, 0); });
  support::error_of(ErrorCode::kInvalidArgument, [] { kvasir::weight_row_bytes(static_cast<WeightType>(3), 256); });
}

TEST_CASE("weights: products stay within the bound of model.h for every type") {
  const int outputs = 31, inputs = 2304;  // more than one part of the depth
  const auto bias = support::float_rows(9, 1, outputs);
  for (const WeightType type : support::kWeightTypes) {
    const int number = static_cast<int>(type);
    const auto weights = support::random_weights(number + 50, type, int64_t{outputs} * inputs);
    const int64_t row_bytes = kvasir::weight_row_bytes(type, inputs);
    for (const int tokens : {1, 3, 13}) {
      INFO("type " << number << ", " << tokens << " tokens");
      const auto in = support::float_rows(number + tokens, tokens, inputs);
      support::Guarded<float> out(tokens * outputs);
      kvasir::project(in.data(), weights.data(), type, bias.data(), tokens, outputs, inputs, out.data());
      int wrong = 0;
      for (int t = 0; t < tokens; ++t) {
        for (int o = 0; o < outputs; ++o) {
          double sum = bias[o], magnitude = std::fabs(sum);
          for (int i = 0; i < inputs; ++i) {
            const auto weight = reference::weight_at(number, weights.data() + o * row_bytes, i);
            sum += weight.value() * in[t * inputs + i];
            magnitude += weight.magnitude() * std::fabs(in[t * inputs + i]);
          }
          // Four roundings of a weight beside those of the sum.
          wrong += !(std::fabs(out[t * outputs + o] - sum) <= (inputs + 7) * 0x1p-24 * magnitude);
        }
      }
      CHECK(wrong == 0);
      CHECK(out.guards_intact());
    }
  }
}

TEST_CASE("weights: a token's product depends neither on other tokens nor on threads nor on where weights lie") {
  const int outputs = 100, inputs = 1536, tokens = 70;
  const auto in = support::float_rows(5, tokens, inputs);
  const int before = kvasir::threads();
  for (const WeightType type : support::kWeightTypes) {
    INFO("type " << static_cast<int>(type));
    const auto weights = support::random_weights(77, type, int64_t{outputs} * inputs);
    std::vector<float> expected(tokens * outputs), out(tokens * outputs), one(outputs);
    kvasir::set_threads(1);
    kvasir::project(in.data(), weights.data(), type, nullptr, tokens, outputs, inputs, expected.data());
    kvasir::set_threads(3);
    kvasir::project(in.data(), weights.data(), type, nullptr, tokens, outputs, inputs, out.data());
    CHECK(out == expected);
    // At an odd address, as nothing promises another.
    std::vector<uint8_t> moved(weights.size() + 1);
    std::copy(weights.begin(), weights.end(), moved.begin() + 1);
    kvasir::project(in.data() + 69 * inputs, moved.data() + 1, type, nullptr, 1, outputs, inputs, one.data());
    CHECK(std::equal(one.begin(), one.end(), expected.begin() + 69 * outputs));
  }
  kvasir::set_threads(before);
}

TEST_CASE("weights: rows by their numbers") {
  const int rows = 20, width = 1280;
  const int ids[] = {3, 19, 0, 3};
  for (const WeightType type : support::kWeightTypes) {
    const int number = static_cast<int>(type);
    const auto weights = support::random_weights(number, type, int64_t{rows} * width);
    support::Guarded<float> out(4 * width);
    kvasir::embed(ids, 4, weights.data(), type, rows, width, out.data());
    int wrong = 0;
    for (int t = 0; t < 4; ++t) {
      for (int i = 0; i < width; ++i) {
        const auto expected =
            reference::weight_at(number, weights.data() + ids[t] * kvasir::weight_row_bytes(type, width), i);
        wrong += !(std::fabs(out[t * width + i] - expected.value()) <= 4 * 0x1p-24 * expected.magnitude());
      }
    }
    CHECK(wrong == 0);
    CHECK(out.guards_intact());
    for (const int id : {-1, rows}) {
      support::error_of(ErrorCode::kInvalidArgument,
                        [&] { kvasir::embed(&id, 1, weights.data(), type, rows, width, out.data()); });
    }
  }
}
