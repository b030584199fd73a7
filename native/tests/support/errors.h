// The error that a call must end with.
#pragma once

#include <string>

#include "kvasir/error.h"
#include "support/doctest.h"

namespace support {

// Its text, once the code is checked.
template <class Call>
std::string error_of(kvasir::ErrorCode code, Call call) {
  try {
    call();
  } catch (const kvasir::Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  FAIL_CHECK("no error");
  return "";
}

}  // namespace support
