// Checks of arguments that public functions share: what they throw names the value.
#pragma once

#include <cmath>
#include <cstdint>
#include <iomanip>
#include <locale>
#include <sstream>
#include <string>

#include "kvasir/error.h"
#include "kvasir/types.h"

namespace kvasir {

[[noreturn]] inline void refuse(const std::string& text) { throw Error(ErrorCode::kInvalidArgument, text); }

inline void require_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) {
    refuse(std::string(name) + " is " + std::to_string(value) + ", not " + std::to_string(least) + ".." +
           std::to_string(most));
  }
}

inline void require_positive(const char* name, int64_t value) {
  if (value < 1) refuse(std::string(name) + " is " + std::to_string(value) + ", not 1 or more");
}

inline void require_pointer(const char* name, const void* pointer) {
  if (pointer == nullptr) refuse(std::string(name) + " is null");
}

// Head dims that caches accept, so that a result always belongs to a cache that can exist.
inline void require_head_dim(int head_dim) {
  if (head_dim < 32 || head_dim > 256 || head_dim % 16 != 0) {
    refuse("head_dim is " + std::to_string(head_dim) + ", not a multiple of 16 in 32..256");
  }
}

// As printf's %g in the C locale. Others have a comma for the point, a JVM takes over its user's, and programs read
// these numbers, or take names of what is saved from them.
inline std::string number_text(double value, int digits) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << std::setprecision(digits) << value;
  return text.str();
}

// With as many digits as tell floats apart; "NaN", "Infinity" and "-Infinity" for the others.
inline std::string float_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return number_text(value, 9);
}

// kNotFinite for one element of `input` ("keys"), which is [tokens][heads][head_dim], with its place in numbers.
inline Error not_finite(const std::string& input, int layer, int heads, int head_dim, int64_t index, float value) {
  const std::string token = std::to_string(index / head_dim / heads);
  const std::string head = std::to_string(index / head_dim % heads);
  const std::string channel = std::to_string(index % head_dim);
  std::string text = input + " hold " + float_text(value) + " at token " + token + ", head " + head + ", channel " +
                     channel + " in layer " + std::to_string(layer);
  if (std::isfinite(value)) {
    text += ": pages keep ranges in float16, so magnitudes are " + std::to_string(static_cast<int>(kMaxMagnitude)) +
            " at most, after key scaling where there is one";
  }
  return Error(ErrorCode::kNotFinite, text,
               "input=" + input + " layer=" + std::to_string(layer) + " token=" + token + " head=" + head +
                   " channel=" + channel + " value=" + float_text(value));
}

// rows: [tokens][width].
inline void require_rows(const float* rows, int64_t tokens, int64_t width, float most = kMaxMagnitude) {
  for (int64_t i = 0; i < tokens * width; ++i) {
    const float value = rows[i];
    // Negated, so that NaN is refused too.
    if (!(std::fabs(value) <= most)) {
      const std::string token = std::to_string(i / width), element = std::to_string(i % width);
      throw Error(ErrorCode::kNotFinite, float_text(value) + " at token " + token + ", element " + element,
                  "token=" + token + " channel=" + element + " value=" + float_text(value));
    }
  }
}

}  // namespace kvasir
