// a * b + c rounded once: against the system's function where that is right, and where two roundings go wrong
// everywhere.
#include "base/multiply_add.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"

namespace {

float of_bits(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b)); }

}  // namespace

TEST_CASE("multiply_add: a sum just off the middle between two floats goes to its own side") {
  // The product is 2^-24 - 2^-70. With 2^-24 the sum would be the middle between `odd` and the next float, which is
  // even.
  const float a = std::ldexp(1.0f + std::ldexp(1.0f, -23), -12), b = std::ldexp(1.0f - std::ldexp(1.0f, -23), -12);
  const float odd = 1.0f + std::ldexp(1.0f, -23);
  CHECK(kvasir::multiply_add(a, b, odd) == odd);
  CHECK(kvasir::multiply_add_by_doubles(a, b, odd) == odd);
  CHECK(kvasir::multiply_add_by_doubles(-a, b, -odd) == -odd);
  // From above: the middle below `odd` goes to 1, and a little more to `odd`.
  const float step = std::ldexp(1.0f, -12);
  CHECK(kvasir::multiply_add_by_doubles(-step, step, odd) == 1.0f);
  CHECK(kvasir::multiply_add_by_doubles(-a, b, odd) == odd);
  CHECK(kvasir::multiply_add_by_doubles(a, b, -odd) == -odd);
  CHECK(kvasir::multiply_add_by_doubles(1e30f, 1e30f, 1.0f) == std::numeric_limits<float>::infinity());
}

#if !defined(_WIN32)
TEST_CASE("multiply_add: any bits, as the system's function has it") {
  support::Random random(support::seed());
  for (int i = 0; i < support::repeat(2'000'000); ++i) {
    const auto any = [&] { return of_bits(static_cast<uint32_t>(random.next())); };
    const float a = any(), b = any();
    // Sums of like size, where roundings meet: c near -+ a * b, or anything.
    const float c = i % 2 ? any() : of_bits((static_cast<uint32_t>(random.next()) & 0x80ffffffu) + 0x3f000000u);
    const float x = i % 2 ? a : std::ldexp(static_cast<float>(random.next() % (1 << 24)), -24);
    const float y = i % 2 ? b : std::ldexp(static_cast<float>(random.next() % (1 << 24)), -int(random.next() % 60));
    REQUIRE_MESSAGE(same(kvasir::multiply_add_by_doubles(x, y, c), std::fma(x, y, c)), x, " * ", y, " + ", c);
  }
}
#endif
