// The verbs without a codec: conversions, the check at append, and tiles over float16 rows.
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/half.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"
#include "support/formats.h"
#include "support/guarded.h"

using kvasir::ElementType;
using kvasir::kPageTokens;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("rows: from_half on every finite half, at every length up to two vectors") {
  std::vector<uint16_t> halves;
  for (int bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7c00) != 0x7c00) halves.push_back(static_cast<uint16_t>(bits));
  }
  for (const kvasir::Backend* backend : support::available_backends()) {
    std::vector<float> wide(halves.size());
    backend->rows->from_half(halves.data(), halves.size(), wide.data());
    int wrong = 0;
    for (size_t i = 0; i < halves.size(); ++i) {
      const double expected = reference::half_value(halves[i]);
      wrong += wide[i] != expected || std::signbit(wide[i]) != std::signbit(expected);
    }
    CHECK_MESSAGE(wrong == 0, backend->name);
    for (size_t count = 0; count <= 35; ++count) {
      support::Guarded<float> out(count);
      backend->rows->from_half(halves.data() + 1000, count, out.data());
      for (size_t i = 0; i < count; ++i) CHECK(out[i] == reference::half_value(halves[1000 + i]));
      CHECK_MESSAGE(out.guards_intact(), backend->name, ", ", count);
    }
  }
}

TEST_CASE("rows: to_half rounds to nearest even from all element types") {
  // Every half, every midpoint between neighbours, and the floats next to the midpoint.
  std::vector<float> floats;
  for (int bits = 0; bits < 0x7bff; ++bits) {
    const double low = reference::half_value(static_cast<uint16_t>(bits));
    const double high = reference::half_value(static_cast<uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float x :
         {static_cast<float>(low), std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e5f)}) {
      floats.push_back(x);
      floats.push_back(-x);
    }
  }
  std::vector<uint16_t> halves, bfloats;
  for (int bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7c00) != 0x7c00) halves.push_back(static_cast<uint16_t>(bits));
    if (std::fabs(reference::bfloat_value(static_cast<uint16_t>(bits))) <= 32752.0) {
      bfloats.push_back(static_cast<uint16_t>(bits));
    }
  }
  for (const kvasir::Backend* backend : support::available_backends()) {
    std::vector<uint16_t> out(floats.size());
    int wrong = 0;
    backend->rows->to_half(floats.data(), ElementType::kFloat32, floats.size(), out.data());
    for (size_t i = 0; i < floats.size(); ++i) wrong += out[i] != reference::half_nearest(floats[i]);
    CHECK_MESSAGE(wrong == 0, backend->name, ", float32");
    backend->rows->to_half(halves.data(), ElementType::kFloat16, halves.size(), out.data());
    CHECK_MESSAGE(std::equal(halves.begin(), halves.end(), out.begin()), backend->name, ", float16");
    wrong = 0;
    backend->rows->to_half(bfloats.data(), ElementType::kBFloat16, bfloats.size(), out.data());
    for (size_t i = 0; i < bfloats.size(); ++i) {
      wrong += out[i] != reference::half_nearest(reference::bfloat_value(bfloats[i]));
    }
    CHECK_MESSAGE(wrong == 0, backend->name, ", bfloat16");
    for (size_t count = 0; count <= 35; ++count) {
      support::Guarded<uint16_t> few(count);
      backend->rows->to_half(floats.data() + 77, ElementType::kFloat32, count, few.data());
      for (size_t i = 0; i < count; ++i) CHECK(few[i] == reference::half_nearest(floats[77 + i]));
      CHECK_MESSAGE(few.guards_intact(), backend->name, ", ", count);
    }
  }
}

TEST_CASE("rows: check finds one bad element at any place") {
  for (const kvasir::Backend* backend : support::available_backends()) {
    const auto check = backend->rows->check;
    for (const int count : {1, 2, 7, 15, 16, 17, 31, 33, 64, 100}) {
      std::vector<float> floats(count, 32752.0f);
      std::vector<uint16_t> halves(count, 0x77ff);   // 32752
      std::vector<uint16_t> bfloats(count, 0x46ff);  // 32640
      for (int i = 1; i < count; i += 2) {
        floats[i] = -32752.0f;
        halves[i] = 0xf7ff;
        bfloats[i] = 0xc6ff;
      }
      CHECK(check(floats.data(), ElementType::kFloat32, count));
      CHECK(check(halves.data(), ElementType::kFloat16, count));
      CHECK(check(bfloats.data(), ElementType::kBFloat16, count));
      int missed = 0;
      for (int i = 0; i < count; ++i) {
        for (const float bad : {kNan, -kNan, kInfinity, -kInfinity, std::nextafter(32752.0f, kInfinity), -32760.0f}) {
          const float good = floats[i];
          floats[i] = bad;
          missed += check(floats.data(), ElementType::kFloat32, count);
          floats[i] = good;
        }
        for (const int bad : {0x7800, 0xf800, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0xfc01}) {
          const uint16_t good = halves[i];
          halves[i] = static_cast<uint16_t>(bad);
          missed += check(halves.data(), ElementType::kFloat16, count);
          halves[i] = good;
        }
        for (const int bad : {0x4700, 0xc700, 0x7f80, 0xff80, 0x7fc0, 0xffff}) {
          const uint16_t good = bfloats[i];
          bfloats[i] = static_cast<uint16_t>(bad);
          missed += check(bfloats.data(), ElementType::kBFloat16, count);
          bfloats[i] = good;
        }
      }
      CHECK_MESSAGE(missed == 0, backend->name, ", ", count, " elements");
    }
  }
}

TEST_CASE("rows: check accepts every allowed half and refuses every other") {
  for (const kvasir::Backend* backend : support::available_backends()) {
    int wrong = 0;
    for (int bits = 0; bits < 65536; ++bits) {
      const auto half = static_cast<uint16_t>(bits);
      const double value = reference::half_value(half);
      const bool allowed = std::fabs(value) <= 32752.0;  // false for NaN
      wrong += backend->rows->check(&half, ElementType::kFloat16, 1) != allowed;
      const double wide = reference::bfloat_value(half);
      wrong += backend->rows->check(&half, ElementType::kBFloat16, 1) != (std::fabs(wide) <= 32752.0);
    }
    CHECK_MESSAGE(wrong == 0, backend->name);
  }
}

// Float32 sums of n products, in any order, fused or not: off by at most (n + 2) * 2^-24 * sum of |products|.
TEST_CASE("rows: key_scores and value_sum over float16 rows") {
  for (const int d : support::kHeadDims) {
    for (const int tokens : {1, 2, 3, 15, 16, 17, 64, 127, 128}) {
      const auto rows = support::half_rows(support::Profile::kOutliers, 5 + tokens, tokens, d);
      support::Guarded<uint16_t> halves(rows.size());
      for (size_t i = 0; i < rows.size(); ++i) halves[i] = reference::half_nearest(rows[i]);
      for (const int count : support::kRowCounts) {
        if (support::effort() < 1.0 && count % 4 != 3 && count != 1) continue;
        const int stride = std::max(d, kPageTokens) + 3;
        const auto input = support::float_rows(31, count, stride);
        for (const kvasir::Backend* backend : support::available_backends()) {
          const kvasir::TileInput tile{input.data(), count, stride, false};
          support::Guarded<float> scores(static_cast<size_t>(count) * kPageTokens);
          support::Guarded<float> outputs(static_cast<size_t>(count) * d);
          std::fill_n(outputs.data(), outputs.size(), 0.5f);
          backend->rows->key_scores(halves.data(), tokens, d, tile, scores.data());
          backend->rows->value_sum(halves.data(), tokens, d, tile, outputs.data());
          int wrong = 0;
          for (int r = 0; r < count; ++r) {
            const float* w = input.data() + r * stride;
            for (int t = 0; t < tokens; ++t) {
              double sum = 0.0, magnitude = 0.0;
              for (int c = 0; c < d; ++c) {
                sum += static_cast<double>(w[c]) * rows[t * d + c];
                magnitude += std::fabs(static_cast<double>(w[c]) * rows[t * d + c]);
              }
              wrong += !(std::fabs(scores[r * kPageTokens + t] - sum) <= (d + 2) * 0x1p-24 * magnitude);
            }
            for (int c = 0; c < d; ++c) {
              double sum = 0.5, magnitude = 0.5;
              for (int t = 0; t < tokens; ++t) {
                sum += static_cast<double>(w[t]) * rows[t * d + c];
                magnitude += std::fabs(static_cast<double>(w[t]) * rows[t * d + c]);
              }
              wrong += !(std::fabs(outputs[r * d + c] - sum) <= (tokens + 3) * 0x1p-24 * magnitude);
            }
          }
          CHECK_MESSAGE(wrong == 0, backend->name, ", d=", d, ", ", tokens, " tokens, ", count, " rows: ", wrong);
          CHECK(scores.guards_intact());
          CHECK(outputs.guards_intact());
        }
      }
    }
  }
}
