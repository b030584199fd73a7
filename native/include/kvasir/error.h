// Errors: one exception type with a pinned code, and a text that names the offending values.
//
// Every function of the library either succeeds or throws kvasir::Error and leaves the cache as it was.
// Nothing aborts, nothing prints.
#pragma once

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

// what() is "<error_name>: <text>", so that the code survives any channel that carries only text.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text)
      : std::runtime_error(std::string(error_name(code)) + ": " + text), code_(code) {}
  ErrorCode code() const noexcept { return code_; }
  // what() without the name.
  std::string text() const { return what() + std::string(error_name(code_)).size() + 2; }

 private:
  ErrorCode code_;
};

}  // namespace kvasir
