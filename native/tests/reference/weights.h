// Weights of GGUF's types, one at a time and in double precision: which bits of a row belong to weight i, and what they
// mean. Shares nothing with the library but the numbers of the types.
#pragma once

#include <cstdint>

namespace reference {

// Bytes and weights of a block; 0 for unknown types.
int block_bytes(int type);
int block_weights(int type);

// A weight is a scaled code less a minimum, which most types have not.
struct Weight {
  double scaled;
  double minimum = 0;
  double value() const { return scaled - minimum; }
  double magnitude() const { return (scaled < 0 ? -scaled : scaled) + (minimum < 0 ? -minimum : minimum); }
};

// Weight `index` of a row.
Weight weight_at(int type, const uint8_t* row, int64_t index);

}  // namespace reference
