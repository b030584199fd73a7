#include "kvasir/error.h"

namespace kvasir {

const char* error_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFinite:
      return "not_finite";
    case ErrorCode::kBudgetExceeded:
      return "budget_exceeded";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kUnknownSequence:
      return "unknown_sequence";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kDeviceFailed:
      return "device_failed";
    case ErrorCode::kBadBytes:
      return "bad_bytes";
  }
  return "unknown_error";
}

}  // namespace kvasir
