// The head of a tiered part, from the extremes of its channels: what all backends write alike, however they find those.
// Each backend includes this in its tiered source; nothing leaves it.
#pragma once

#include <cstring>

#include "codecs/tiered/formula.h"
#include "codecs/tiered/parameters.h"
#include "codecs/uniform/formula.h"

namespace kvasir {
namespace {

// Lowest and highest element of each channel over each group of tokens: [groups][head_dim].
struct ChannelExtremes {
  alignas(64) float low[kPageTokens / 32 * kMaxHeadDim];
  alignas(64) float high[kPageTokens / 32 * kMaxHeadDim];
};

inline size_t write_head(const PageFormat& format, const ChannelExtremes& extremes, const float* importance,
                         uint8_t* head) {
  const int d = format.head_dim;
  float range[kMaxHeadDim];
  for (int c = 0; c < d; ++c) {
    float low = extremes.low[c], high = extremes.high[c];
    for (int g = 1; g < kPageTokens / format.group; ++g) {
      low = extremes.low[g * d + c] < low ? extremes.low[g * d + c] : low;
      high = extremes.high[g * d + c] > high ? extremes.high[g * d + c] : high;
    }
    range[c] = high - low;
  }
  tiered::Tiers tiers;
  tiered::choose_tiers(format, range, importance, tiers);

  const tiered::Layout layout = tiered::layout_of(format, tiers.n16, tiers.n4);
  const uint16_t counts[2] = {static_cast<uint16_t>(tiers.n16), static_cast<uint16_t>(tiers.n4)};
  memcpy(head, counts, sizeof counts);
  uint8_t* channels = head + tiered::kCountBytes;
  int place[3] = {0, tiers.n16, tiers.n16 + tiers.n4};
  for (int c = 0; c < d; ++c) {
    const int tier = tiers.width[c] == 16 ? 0 : tiers.width[c] == 4 ? 1 : 2;
    channels[place[tier]++] = static_cast<uint8_t>(c);
  }
  for (int g = 0; g < layout.groups; ++g) {
    for (int column = 0; column < layout.columns; ++column) {
      const int at = layout.place_of(column);
      uniform::Parameters stored = {0, 0};
      if (at >= 0)
        stored = tiered::parameters_of(format, extremes.low[g * d + channels[at]], extremes.high[g * d + channels[at]]);
      tiered::store_parameters(layout, g, column, stored, head);
    }
  }
  return layout.bytes;
}

inline uniform::Codes codes_of_column(const tiered::Layout& layout, int column) {
  return uniform::codes_of(layout.bits_of(column), layout.grid_of(column));
}

// What is stored beside codes: zeros between the head and the first multiple of 64, and the 16-bit tier.
inline void write_values(const tiered::Layout& layout, const float* rows, uint8_t* part) {
  memset(part + layout.parameters_end(), 0, layout.values_offset - layout.parameters_end());
  for (int i = 0; i < layout.n16; ++i) {
    const int channel = tiered::channels_of(part)[i];
    uint16_t* values = reinterpret_cast<uint16_t*>(part + layout.value_offset(i));
    for (int t = 0; t < kPageTokens; ++t) {
      values[t] = float_to_half(rows[static_cast<size_t>(t) * layout.head_dim + channel]);
    }
  }
}

}  // namespace
}  // namespace kvasir
