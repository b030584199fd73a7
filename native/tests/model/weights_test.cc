// Weights of every type, alone and in products, against values and sums in double precision.
#include "reference/weights.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kvasir/backend.h"
#include "kvasir/model.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
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
  support::error_of(ErrorCode::kInvalidArgument, [] { kvasir::weight_row_bytes(static_cast<WeightType>(9), 256); });
}

namespace {

// The reference's weights, decoded once for all products with them.
std::vector<reference::Weight> decoded(WeightType type, const std::vector<uint8_t>& weights, int rows, int inputs) {
  const int number = static_cast<int>(type);
  std::vector<reference::Weight> values;
  values.reserve(static_cast<size_t>(rows) * inputs);
  for (int row = 0; row < rows; ++row) {
    const uint8_t* from = weights.data() + row * kvasir::weight_row_bytes(type, inputs);
    for (int i = 0; i < inputs; ++i) values.push_back(reference::weight_at(number, from, i));
  }
  return values;
}

// The largest error that model.h allows: float32 sums for weights that are floats; for weights in blocks activations
// are off by half a 127th of the largest of their 32 neighbours, and sums have a term, or two, for every 16 weights.
double allowed(WeightType type, const float* in, const reference::Weight* row, int inputs, double bias) {
  const bool coded = reference::block_weights(static_cast<int>(type)) > 1;
  double rounded = 0, magnitude = std::fabs(bias);
  for (int begin = 0; begin < inputs; begin += 32) {
    double largest = 0;
    for (int i = begin; i < begin + 32; ++i) largest = std::max(largest, std::fabs(static_cast<double>(in[i])));
    const double step = coded ? largest / 127 : 0;
    for (int i = begin; i < begin + 32; ++i) {
      const double weight = row[i].magnitude();
      rounded += weight * step * (0.5 + 0x1p-15);
      magnitude += weight * (std::fabs(in[i]) + step);
    }
  }
  return rounded + (coded ? inputs / 8 + 10 : inputs + 7) * 0x1p-24 * magnitude;
}

double product(const float* in, const reference::Weight* row, int inputs) {
  double sum = 0;
  for (int i = 0; i < inputs; ++i) sum += row[i].value() * in[i];
  return sum;
}

// Activations that 8-bit codes hold: whole numbers below 128, with one of 127 among 32, times a power of two.
std::vector<float> whole_rows(uint64_t seed, int rows, int width) {
  support::Random random(seed);
  std::vector<float> values(static_cast<size_t>(rows) * width);
  for (size_t i = 0; i < values.size(); ++i) {
    const int whole = i % 32 == 5 ? 127 : static_cast<int>(random.below(255)) - 127;
    values[i] = std::ldexp(static_cast<float>(whole), static_cast<int>(i / 32 % 7) - 3);
  }
  return values;
}

}  // namespace

TEST_CASE("weights: products stay within the bound of model.h for every type") {
  const int outputs = 31, inputs = 2304;  // more than one part of the depth
  const auto bias = support::float_rows(9, 1, outputs);
  for (const WeightType type : support::kWeightTypes) {
    const int number = static_cast<int>(type);
    const auto weights = support::random_weights(number + 50, type, int64_t{outputs} * inputs);
    const auto known = decoded(type, weights, outputs, inputs);
    for (const int tokens : {1, 3, 13}) {
      INFO("type " << number << ", " << tokens << " tokens");
      const auto in = support::float_rows(number + tokens, tokens, inputs);
      support::Guarded<float> out(tokens * outputs);
      kvasir::project(in.data(), weights.data(), type, bias.data(), tokens, outputs, inputs, out.data());
      int wrong = 0;
      for (int t = 0; t < tokens; ++t) {
        for (int o = 0; o < outputs; ++o) {
          const reference::Weight* row = known.data() + o * inputs;
          const double expected = product(in.data() + t * inputs, row, inputs) + bias[o];
          const double bound = allowed(type, in.data() + t * inputs, row, inputs, bias[o]);
          wrong += !(std::fabs(out[t * outputs + o] - expected) <= bound);
        }
      }
      CHECK(wrong == 0);
      CHECK(out.guards_intact());
    }
  }
}

// With activations that codes hold, only float32 roundings are left: no group's scale can be wrong unseen.
TEST_CASE("weights: products in blocks are exact up to float32 sums, on every level, for all remainders") {
  support::Sampler sampler;
  for (const WeightType type : support::kWeightTypes) {
    const int number = static_cast<int>(type);
    if (reference::block_weights(number) == 1) continue;
    for (const int inputs : {256, 768, reference::block_weights(number) == 32 ? 352 : 512}) {
      for (const int columns : {1, 3, 4, 7, 8, 31, 33}) {
        const auto weights = support::random_weights(number + columns, type, int64_t{columns} * inputs);
        const auto known = decoded(type, weights, columns, inputs);
        const int64_t row_bytes = kvasir::weight_row_bytes(type, inputs);
        const auto bias = support::float_rows(9, 1, columns);
        for (const int rows : {1, 2, 3, 4, 5, 6, 11, 16, 35, 49}) {
          if ((columns > 8 ? rows > 5 && rows < 35 : rows > 11) || sampler.skip()) continue;
          const auto in = whole_rows(number + rows, rows, inputs);
          const int parts = (inputs + kvasir::kCodedDepth - 1) / kvasir::kCodedDepth;
          for (const kvasir::Backend* backend : support::available_backends()) {
            std::vector<kvasir::CodedPart> coded(parts * rows + kvasir::kSpareRows);
            for (int p = 0; p < parts; ++p) {
              const int begin = p * kvasir::kCodedDepth, count = std::min(inputs - begin, kvasir::kCodedDepth);
              for (int r = 0; r < rows; ++r) {
                backend->matrix->encode(in.data() + r * inputs + begin, count, &coded[p * rows + r]);
              }
            }
            const int stride = columns + 2;
            support::Guarded<float> out(static_cast<size_t>(rows) * stride);
            std::fill_n(out.data(), out.size(), 9.0f);
            const kvasir::MatrixBlock block = {nullptr, coded.data(), rows,        weights.data(), type,  row_bytes,
                                               columns, inputs,       bias.data(), out.data(),     stride};
            backend->matrix->block_product(block);
            int wrong = 0, touched = 0;
            for (int r = 0; r < rows; ++r) {
              for (int c = 0; c < columns; ++c) {
                const reference::Weight* row = known.data() + c * inputs;
                const double expected = product(in.data() + r * inputs, row, inputs) + bias[c];
                double magnitude = std::fabs(bias[c]);
                for (int i = 0; i < inputs; ++i) {
                  magnitude += row[i].magnitude() * std::fabs(in[r * inputs + i]);
                }
                wrong += !(std::fabs(out[r * stride + c] - expected) <= (inputs / 8 + 10) * 0x1p-24 * magnitude);
              }
              for (int c = columns; c < stride; ++c) touched += out[r * stride + c] != 9.0f;
            }
            INFO("type " << number << " on " << backend->name << ": " << rows << " x " << columns << " x " << inputs);
            CHECK(wrong == 0);
            CHECK(touched == 0);
            CHECK(out.guards_intact());
          }
        }
      }
    }
  }
}

TEST_CASE("weights: activations are rounded to codes as matrix.h says") {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  auto values = support::float_rows(4, 1, kvasir::kCodedDepth, 3.0);
  std::fill_n(values.begin() + 32, 32, 0.0f);
  std::fill_n(values.begin() + 64, 32, 1e-38f);
  values[96 + 7] = nan;
  values[128 + 31] = -infinity;
  values[160] = -1e30f;
  for (const kvasir::Backend* backend : support::available_backends()) {
    INFO(backend->name);
    kvasir::CodedPart part;
    backend->matrix->encode(values.data(), kvasir::kCodedDepth, &part);
    CHECK(part.scales[1] == 0.0f);
    CHECK(part.scales[2] == 0.0f);
    CHECK(std::isnan(part.scales[3]));
    CHECK(std::isnan(part.scales[4]));
    int wrong = 0;
    for (int i = 0; i < kvasir::kCodedDepth; ++i) {
      const int group = i / kvasir::kScaleGroup;
      if (group >= 1 && group <= 4) continue;
      double largest = 0;
      for (int j = 0; j < 32; ++j) largest = std::max(largest, std::fabs(static_cast<double>(values[group * 32 + j])));
      const double step = largest / 127;
      wrong += !(std::fabs(part.scales[group] - step) <= step * 0x1p-22);
      wrong += !(std::fabs(values[i] - part.codes[i] * step) <= step * (0.5 + 0x1p-15));
    }
    for (int g = 0; g < kvasir::kCodedDepth / kvasir::kSumGroup; ++g) {
      if (g / 2 >= 1 && g / 2 <= 4) continue;
      int total = 0;
      for (int i = 0; i < kvasir::kSumGroup; ++i) total += part.codes[g * kvasir::kSumGroup + i];
      wrong += part.offsets[g] != -128 * total;
      wrong += part.sums[g] != part.scales[g / 2] * static_cast<float>(total);
    }
    CHECK(wrong == 0);
  }
}

// Sums of whole numbers at their largest: scales, codes and activations all at their ends, of one sign.
TEST_CASE("weights: no whole number overflows") {
  const int inputs = 512, columns = 40;
  for (const WeightType type : support::kWeightTypes) {
    const int number = static_cast<int>(type);
    if (reference::block_weights(number) == 1) continue;
    for (const int byte : {0x00, 0x0f, 0x7f, 0x80, 0xff}) {
      std::vector<uint8_t> weights(columns * kvasir::weight_row_bytes(type, inputs), static_cast<uint8_t>(byte));
      for (size_t at = 0; at < weights.size(); at += reference::block_bytes(number)) {
        for (const int half : support::halves_of(type)) weights[at + half] = 0, weights[at + half + 1] = 0x3c;  // 1
      }
      const auto row = decoded(type, weights, 1, inputs);
      for (const int tokens : {1, 4, 40}) {
        const std::vector<float> in(static_cast<size_t>(tokens) * inputs, 127.0f);
        std::vector<float> out(static_cast<size_t>(tokens) * columns);
        kvasir::project(in.data(), weights.data(), type, nullptr, tokens, columns, inputs, out.data());
        const double expected = product(in.data(), row.data(), inputs);
        double magnitude = 0;
        for (const reference::Weight& weight : row) magnitude += weight.magnitude() * 127;
        const double bound = (inputs / 8 + 10) * 0x1p-24 * magnitude;
        const auto wrong =
            std::count_if(out.begin(), out.end(), [&](float x) { return !(std::fabs(x - expected) <= bound); });
        INFO("type " << number << ", bytes " << byte << ", " << tokens << " tokens: " << out[0] << " for " << expected);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("weights: what is not finite makes NaN in its own token and in no other") {
  const int outputs = 9, inputs = 512, tokens = 6;
  const auto weights = support::random_weights(8, WeightType::kQ4_K, int64_t{outputs} * inputs);
  auto in = support::float_rows(5, tokens, inputs);
  in[inputs + 3] = std::numeric_limits<float>::quiet_NaN();
  in[4 * inputs + 511] = std::numeric_limits<float>::infinity();
  std::vector<float> out(tokens * outputs);
  kvasir::project(in.data(), weights.data(), WeightType::kQ4_K, nullptr, tokens, outputs, inputs, out.data());
  for (int t = 0; t < tokens; ++t) {
    for (int o = 0; o < outputs; ++o) CHECK(std::isnan(out[t * outputs + o]) == (t == 1 || t == 4));
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
    for (const int some : {1, 2, 3, 4, 6}) {
      one.resize(some * outputs);
      kvasir::project(in.data() + 61 * inputs, moved.data() + 1, type, nullptr, some, outputs, inputs, one.data());
      CHECK(std::equal(one.begin(), one.end(), expected.begin() + 61 * outputs));
    }
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
