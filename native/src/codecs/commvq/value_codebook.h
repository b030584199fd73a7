// A value codebook inside the library, for the codec that stores its bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/codebook.h"
#include "kvasir/commvq.h"

namespace kvasir {

struct ValueCodebook::Impl {
  // Checks its arguments, those of ValueCodebook::create, and rounds the table.
  Impl(int width, int codes, const float* given, const float* limits, const CodebookKernels& kernels);

  const CodebookKernels& kernels;
  int width, codes;
  std::vector<float> table;       // [codes][width]
  std::vector<float> gram;        // [codes][codes], products of rows
  std::vector<float> diagonal;    // [codes]
  std::vector<float> thresholds;  // [codes]

  const float* row(int code) const { return table.data() + static_cast<size_t>(code) * width; }
  size_t token_bytes() const { return static_cast<size_t>(codes) / 8; }
  // Bits by thresholds if `begin`, else those that are there; then flips, then gains. Arguments have been checked.
  void find_bits(const float* rows, int64_t tokens, bool begin, int flips, uint8_t* bits, uint16_t* gains) const;
  // out = s C. bits: token_bytes().
  void sum_rows(const uint8_t* bits, float* out) const;
  // The gain, as float16 bits, that leaves the least of `row` beside gain * sum. Both [width].
  uint16_t gain_of(const float* row, const float* sum) const;
};

namespace commvq {

inline bool bit_at(const uint8_t* bits, int n) { return (bits[n / 8] >> (n % 8) & 1) != 0; }

// Throws kInvalidArgument.
void require_value_shape(int width, int codes);

// Divides by the root mean square: what codebooks describe. Returns it; where it is 0 as a float, the row stays.
float normalise(const float* row, int width, float* out);

}  // namespace commvq
}  // namespace kvasir
