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
  kBadBytes = 8,         // saved bytes that are damaged, cut off, or of another cache: `reason` says which
};

// What is wrong with saved bytes. Append only, too.
enum class BadBytes : int {
  kForeign = 1,     // nothing that this library saved
  kVersion = 2,     // saved by a version that this one does not know
  kTruncated = 3,   // they end too early
  kChecksum = 4,    // a checksum is not that of the bytes
  kMismatch = 5,    // they belong to a cache of another kind: fingerprints differ
  kInvalid = 6,     // checksums are right, and what they protect makes no sense
  kIncomplete = 7,  // blocks, or what goes with them, are missing
  kOrder = 8,       // blocks that do not follow each other, or are not those of this sequence
};

// "budget_exceeded", "not_finite", ...
const char* error_name(ErrorCode code) noexcept;

// what() is "<error_name>: <text>", or "<error_name>[<numbers>]: <text>", so that all of it survives any channel that
// carries only text. Numbers are for programs: "name=value" with a space between them.
//
//   kBudgetExceeded  layer, needed, left; own=1 where it is the layer's own budget, own=0 where it is the cache's
//   kNotFinite       input (keys, values, queries), layer, token, head, channel, value; as many of them as are known
//   kBadBytes        reason: a BadBytes by its number
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
