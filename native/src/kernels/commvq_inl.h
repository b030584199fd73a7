// Codes of CommVQ keys, unpacked. Included by the sources of every level, hence in a namespace without a name.
#pragma once

#include <cstdint>
#include <cstring>

#include "codecs/commvq/format.h"

namespace kvasir {
namespace {

constexpr int kMaxStages = 64;

// The indices of one kv head of a page.
struct KeyCodes {
  uint8_t a[kMaxStages][kPageTokens];
  uint8_t b[kMaxStages][kPageTokens];
};

// Codes of an even number of bits, 8 to 12, so that four of them are a whole number of bytes.
inline void unpack_head(const commvq::KeyPage& layout, const uint8_t* page, int kv_head, KeyCodes& codes) {
  const int bits = 2 * layout.index_bits;
  const uint32_t mask = (1u << layout.index_bits) - 1;
  for (int s = 0; s < layout.stages; ++s) {
    const uint8_t* packed = page + layout.head_offset(kv_head) + s * layout.stage_bytes();
    for (int t = 0; t < kPageTokens; t += 4) {
      uint64_t word = 0;
      memcpy(&word, packed + t * bits / 8, bits / 2);
      for (int i = 0; i < 4; ++i) {
        const auto code = static_cast<uint32_t>(word >> (i * bits));
        codes.a[s][t + i] = static_cast<uint8_t>(code & mask);
        codes.b[s][t + i] = static_cast<uint8_t>(code >> layout.index_bits & mask);
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
