// Errors: one exception type with a pinned code, and a text that names the offending values.
//
// Every function of the library either succeeds or throws kvasir::Error and leaves the cache as it was; std::bad_alloc
// passes through and means kOutOfMemory. Nothing aborts, nothing prints.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace kvasir {

// The numbers are part of the interface: bindings and logs rely on them. Append only.
enum class ErrorCode : int {
  kInvalidArgument = 1,  // a number, size, name or pointer that no cache could accept
  kNotFinite = 2,        // NaN, infinity or a magnitude above kMaxMagnitude in appended data
  kBudgetExceeded = 3,   // the pool's or a layer's byte budget does not hold what the call needs
  kOutOfMemory = 4,      // the operating system refused memory within the budget
  kUnknownSequence = 5,  // the id was never given out, or the sequence was released
  kUnavailable = 6,      // a backend that this machine or build does not have
  kDeviceFailed = 7,     // the device reported a failure of its own: caches there are lost
};

// "budget_exceeded", "not_finite", ...
const char* error_name(ErrorCode code) noexcept;

// what() is "<error_name>: <text>", or "<error_name>[<numbers>]: <text>", so that all of it survives any channel that
// carries only text. Numbers are for programs: "name=value" with a space between them.
//
//   kBudgetExceeded  layer, needed, left; own=1 where it is the layer's own budget, own=0 where it is the cache's
//   kNotFinite       input (keys, values, queries), layer, token, head, channel, value; as many of them as are known
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text, const std::string& numbers = "")
      : std::runtime_error(prefix(code, numbers) + text), code_(code), text_(prefix(code, numbers).size()) {}
  ErrorCode code() const noexcept { return code_; }
  // what() without name and numbers.
  std::string text() const { return what() + text_; }

 private:
  static std::string prefix(ErrorCode code, const std::string& numbers) {
    return error_name(code) + (numbers.empty() ? "" : "[" + numbers + "]") + ": ";
  }
  ErrorCode code_;
  size_t text_;  // where it begins
};

}  // namespace kvasir
