// float16 conversion: exhaustive over all halves, and over every rounding decision between neighbouring ones.
#include "base/half.h"

#include <cmath>
#include <limits>

#include "reference/half.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"

namespace {

float next_up(float x) { return std::nextafter(x, std::numeric_limits<float>::infinity()); }
float next_down(float x) { return std::nextafter(x, -std::numeric_limits<float>::infinity()); }

// Counts instead of asserting per value: an assertion costs more than the conversion.
int wrong_roundings(float x) { return kvasir::float_to_half(x) == reference::half_nearest(x) ? 0 : 1; }

}  // namespace

TEST_CASE("half: every half widens to its exact value and comes back") {
  int wrong = 0;
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = kvasir::half_to_float(half);
    const double expected = reference::half_value(half);
    if (std::isnan(expected)) {
      wrong += !std::isnan(wide) || std::signbit(wide) != ((bits & 0x8000) != 0);
      wrong += kvasir::float_to_half(wide) != ((bits & 0x8000) | 0x7e00);
    } else {
      wrong += static_cast<double>(wide) != expected || std::signbit(wide) != std::signbit(expected);
      wrong += kvasir::float_to_half(wide) != half;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("half: floats at and around every midpoint round to nearest even") {
  int wrong = 0;
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const double low = reference::half_value(static_cast<uint16_t>(bits));
    // Above the largest finite half stands 65536, which is infinity: 65520 is the last midpoint.
    const double high = bits == 0x7bff ? 65536.0 : reference::half_value(static_cast<uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);  // 12 significant bits: exact
    for (const float x : {next_down(middle), middle, next_up(middle), next_up(static_cast<float>(low)),
                          next_down(static_cast<float>(high))}) {
      wrong += wrong_roundings(x) + wrong_roundings(-x);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("half: zeros, subnormal floats, infinities and NaN") {
  CHECK(kvasir::float_to_half(0.0f) == 0x0000);
  CHECK(kvasir::float_to_half(-0.0f) == 0x8000);
  CHECK(kvasir::float_to_half(std::numeric_limits<float>::denorm_min()) == 0x0000);
  CHECK(kvasir::float_to_half(0x1p-25f) == 0x0000);  // a tie between 0 and 2^-24 goes to even
  CHECK(kvasir::float_to_half(next_up(0x1p-25f)) == 0x0001);
  CHECK(kvasir::float_to_half(65519.996f) == 0x7bff);
  CHECK(kvasir::float_to_half(65520.0f) == 0x7c00);
  CHECK(kvasir::float_to_half(-std::numeric_limits<float>::infinity()) == 0xfc00);
  CHECK((kvasir::float_to_half(std::numeric_limits<float>::quiet_NaN()) & 0x7fff) > 0x7c00);
}

TEST_CASE("half: random float bit patterns agree with the definition") {
  support::Random random(support::seed());
  int wrong = 0;
  for (int i = 0; i < support::repeat(2'000'000); ++i) {
    const float x = kvasir::bits_float(static_cast<uint32_t>(random.next()));
    wrong += wrong_roundings(x);
  }
  CHECK(wrong == 0);
}

TEST_CASE("half: half_at_least is the smallest half not below") {
  int wrong = 0;
  for (int bits = 0; bits < 0x7bff; ++bits) {
    const double low = reference::half_value(static_cast<uint16_t>(bits));
    const double high = reference::half_value(static_cast<uint16_t>(bits + 1));
    wrong += kvasir::half_at_least(low) != bits;
    wrong += kvasir::half_at_least(high) != bits + 1;
    // Just above `low` by less than float32 can tell: the difference of two halves may be such a number.
    for (const double x : {low + (high - low) * 0x1p-30, (low + high) / 2, high - (high - low) * 0x1p-30}) {
      wrong += kvasir::half_at_least(x) != bits + 1;
      wrong += reference::half_up(x) != bits + 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("half: every bfloat16 widens to the float with the same upper bits") {
  int wrong = 0;
  for (int bits = 0; bits < 65536; ++bits) {
    const uint32_t wide = kvasir::float_bits(kvasir::bfloat_to_float(static_cast<uint16_t>(bits)));
    wrong += wide != static_cast<uint32_t>(bits) << 16;
  }
  CHECK(wrong == 0);
}

TEST_CASE("half: floats round to the nearest bfloat16, ties to even, and NaN stays one") {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 0x7F7F; ++bits) {  // neighbours, all finite
    for (const uint32_t sign : {0u, 0x8000u}) {
      const auto low = static_cast<uint16_t>(bits | sign), high = static_cast<uint16_t>(low + 1);
      const uint32_t wide = uint32_t{low} << 16;
      wrong += kvasir::float_to_bfloat(kvasir::bits_float(wide)) != low;
      wrong += kvasir::float_to_bfloat(kvasir::bits_float(wide + 0x7FFF)) != low;
      wrong += kvasir::float_to_bfloat(kvasir::bits_float(wide + 0x8000)) != (low % 2 == 0 ? low : high);
      wrong += kvasir::float_to_bfloat(kvasir::bits_float(wide + 0x8001)) != high;
    }
  }
  CHECK(wrong == 0);
  CHECK(kvasir::float_to_bfloat(kvasir::bits_float(0x7F7FFFFFu)) == 0x7F80);  // beyond the greatest: infinity
  CHECK(kvasir::float_to_bfloat(kvasir::bits_float(0x7F800000u)) == 0x7F80);
  for (const uint32_t nan : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u}) {
    const float widened = kvasir::bfloat_to_float(kvasir::float_to_bfloat(kvasir::bits_float(nan)));
    CHECK(std::isnan(widened));
  }
}
