// What all levels do alike for CommVQ: pages by their model, and codes of keys, unpacked. Included by the sources of
// every level, hence in a namespace without a name.
#pragma once

#include <cstdint>
#include <cstring>

#include "codecs/commvq/model.h"

namespace kvasir {
namespace commvq {
namespace {

inline const KeyModel& keys_of(const PageFormat& format) { return static_cast<const KeyModel&>(*format.model); }
inline const ValueModel& values_of(const PageFormat& format) { return static_cast<const ValueModel&>(*format.model); }

inline void encode(const PageFormat& format, const float* rows, uint8_t* page) { format.model->encode(rows, page); }
inline void decode(const PageFormat& format, const uint8_t* page, float* rows) { format.model->decode(page, rows); }

}  // namespace
}  // namespace commvq
namespace {

constexpr int kMaxStages = 64;

// The codes of one kv head of a page, as offsets of their rows in a chunk of a stage's table (commvq::KeyModel).
struct KeyCodes {
  uint16_t a[kMaxStages][kPageTokens];
  uint16_t b[kMaxStages][kPageTokens];
};

// Four codes of kIndexBits twice are a whole number of bytes.
template <int kIndexBits>
void unpack_codes(const commvq::KeyPage& layout, const uint8_t* packed, KeyCodes& codes) {
  constexpr uint64_t kMask = (1u << kIndexBits) - 1;
  for (int s = 0; s < layout.stages; ++s) {
    for (int t = 0; t < kPageTokens; t += 4, packed += kIndexBits) {
      // Two loads: one of an odd length would go through memory.
      uint32_t low;
      uint16_t high = 0;
      memcpy(&low, packed, 4);
      memcpy(&high, packed + 4, kIndexBits - 4);
      uint64_t word = static_cast<uint64_t>(high) << 32 | low;
      for (int i = 0; i < 4; ++i, word >>= 2 * kIndexBits) {
        codes.a[s][t + i] = static_cast<uint16_t>((word & kMask) * commvq::kChunk);
        codes.b[s][t + i] = static_cast<uint16_t>((word >> kIndexBits & kMask) * commvq::kChunk);
      }
    }
  }
}

inline void unpack_head(const commvq::KeyPage& layout, const uint8_t* page, int kv_head, KeyCodes& codes) {
  const uint8_t* packed = page + layout.head_offset(kv_head);
  (layout.index_bits == 6   ? unpack_codes<6>
   : layout.index_bits == 5 ? unpack_codes<5>
                            : unpack_codes<4>)(layout, packed, codes);
}

}  // namespace
}  // namespace kvasir
