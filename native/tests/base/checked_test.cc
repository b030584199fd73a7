// Checked arithmetic: right where the result fits, an error with both operands where it does not.
#include "base/checked.h"

#include <limits>
#include <string>

#include "support/doctest.h"

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

// The message of the error that `call` throws, or "" with a failed check.
template <class Call>
std::string error_text(Call call) {
  try {
    call();
  } catch (const kvasir::Error& error) {
    CHECK(error.code() == kvasir::ErrorCode::kInvalidArgument);
    return error.what();
  }
  FAIL_CHECK("no error");
  return "";
}

}  // namespace

TEST_CASE("checked: products and sums that fit") {
  CHECK(kvasir::checked_multiply(0, kMost, "size") == 0);
  CHECK(kvasir::checked_multiply(kMost, 1, "size") == kMost);
  CHECK(kvasir::checked_multiply(int64_t{1} << 31, int64_t{1} << 31, "size") == int64_t{1} << 62);
  CHECK(kvasir::checked_multiply(-3, 7, "size") == -21);
  CHECK(kvasir::checked_add(kMost, 0, "size") == kMost);
  CHECK(kvasir::checked_add(kMost, kLeast, "size") == -1);
}

TEST_CASE("checked: overflow names what and by how much") {
  const std::string product = error_text([] { kvasir::checked_multiply(int64_t{1} << 32, int64_t{1} << 31, "rows"); });
  CHECK(product.find("rows") != std::string::npos);
  CHECK(product.find("4294967296") != std::string::npos);
  CHECK(product.find("2147483648") != std::string::npos);
  error_text([] { kvasir::checked_multiply(kLeast, -1, "rows"); });
  error_text([] { kvasir::checked_add(kMost, 1, "rows"); });
  error_text([] { kvasir::checked_add(kLeast, -1, "rows"); });
}

TEST_CASE("error: codes are pinned, and the text carries the name") {
  using kvasir::ErrorCode;
  CHECK(static_cast<int>(ErrorCode::kInvalidArgument) == 1);
  CHECK(static_cast<int>(ErrorCode::kNotFinite) == 2);
  CHECK(static_cast<int>(ErrorCode::kBudgetExceeded) == 3);
  CHECK(static_cast<int>(ErrorCode::kOutOfMemory) == 4);
  CHECK(static_cast<int>(ErrorCode::kUnknownSequence) == 5);
  CHECK(static_cast<int>(ErrorCode::kUnavailable) == 6);
  for (int code = 1; code <= 6; ++code) {
    const auto value = static_cast<ErrorCode>(code);
    const kvasir::Error error(value, "seven of nine");
    CHECK(error.code() == value);
    CHECK(std::string(error.what()) == std::string(kvasir::error_name(value)) + ": seven of nine");
    CHECK(std::string(kvasir::error_name(value)) != "unknown_error");
  }
}
